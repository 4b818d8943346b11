"""Ids of files and batches. They sort by their time of creation, and fit into a subject and a KV key."""

from __future__ import annotations

import re
import secrets

_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_id(prefix: str, unix_s: float) -> str:
    """``prefix`` is "file-" or "batch_"."""
    return f"{prefix}{int(unix_s * 1000):012x}{secrets.token_hex(6)}"


def is_well_formed(id: str) -> bool:
    """Whether it can be looked up at all; what clients send may hold anything."""
    return _WELL_FORMED.fullmatch(id) is not None
