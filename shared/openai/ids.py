"""Ids of files and batches. They sort by their time of creation, and fit into a subject and a KV key."""

import re
import secrets

_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NEW = re.compile(r"(?:file-|batch_)([0-9a-f]{12})[0-9a-f]{12}(?:-output|-error)?")


def new_id(prefix: str, unix_s: float) -> str:
    """``prefix`` is "file-" or "batch_"."""
    return f"{prefix}{int(unix_s * 1000):012x}{secrets.token_hex(6)}"


def is_well_formed(id: str) -> bool:
    """Whether it can be looked up at all; what clients send may hold anything."""
    return _WELL_FORMED.fullmatch(id) is not None


def created_s_of(id: str) -> int | None:
    """The unix time in an id of ``new_id``, or in that of a batch's file, which has the batch's; None for any other."""
    match = _NEW.fullmatch(id)
    return int(match[1], 16) // 1000 if match else None
