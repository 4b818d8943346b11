"""Whose request it is, for fairness between clients and for the log."""

from dataclasses import dataclass
from hashlib import blake2b

from shared.protocol.api_keys import ApiKeyRecord


@dataclass(frozen=True, slots=True)
class Sender:
    """What goes with a request to its executor."""

    client_id: str
    client_weight: float = 1.0
    http_request_id: str = ""


def client_id_of(key: ApiKeyRecord | None, authorization: str | None, user: str | None) -> str:
    """The name of a known API key, else from what the Authorization header holds, else from the body's ``user`` field,
    else empty.

    No key leaves the gateway, only hashes do, and a user cannot name itself like the owner of a key.
    """
    if key is not None:
        return f"name-{key.name}"
    unknown_key = (authorization or "").removeprefix("Bearer").strip()
    if unknown_key:
        return _hashed("key", unknown_key)
    return _hashed("user", user) if user else ""


def _hashed(kind: str, name: str) -> str:
    return f"{kind}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
