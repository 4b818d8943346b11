"""Whose request it is, for fairness between clients."""

from __future__ import annotations

from hashlib import blake2b


def client_id_of(authorization: str | None, user: str | None) -> str:
    """From the API key in the Authorization header, else from the body's ``user`` field, else empty.

    It is a hash, so that no key leaves the gateway, and a user cannot name itself like the owner of a key.
    """
    key = (authorization or "").removeprefix("Bearer").strip()
    if key:
        return _hashed("key", key)
    return _hashed("user", user) if user else ""


def _hashed(kind: str, name: str) -> str:
    return f"{kind}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
