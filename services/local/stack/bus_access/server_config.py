"""What nats-server has to know of those whom it lets in, in the words of its configuration file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shared.bus.permissions import BusRole, permissions_of

Accepted = Mapping[BusRole, Sequence[str]]  # public keys by role


def authorization(keys: Accepted) -> str:
    """The block of that name: a user for each key, with its role's permissions."""
    users = [_user(role, key) for role, accepted in keys.items() for key in accepted]
    lines = ",\n    ".join(_text(user) for user in users)
    return f"authorization {{\n  users: [\n    {lines}\n  ]\n}}\n"


def tls(certificate: Path, key: Path) -> str:
    """The block of that name."""
    return f"tls {{ cert_file: {_text(str(certificate))}, key_file: {_text(str(key))} }}\n"


def _user(role: BusRole, key: str) -> dict[str, Any]:
    may = permissions_of(role)
    return {"nkey": key, "permissions": {"publish": {"allow": may.publish}, "subscribe": {"allow": may.subscribe}}}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()  # which is as NATS's own format has it
