"""JSON as people read it."""

from typing import Any

import msgspec


def json_text(value: Any) -> str:
    """Indented JSON of anything that msgspec encodes; keys are the field names."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
