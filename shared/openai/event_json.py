"""JSON that server-sent events carry."""

from typing import Any

import msgspec

# What ends a line to Python's str.splitlines, and so to clients that read events by it (httpx's iter_lines, by which
# huggingface_hub does); neither to JSON nor to events. Other characters that do JSON has escaped in any case.
LINE_ENDS = {each.encode(): f"\\u{ord(each):04x}".encode() for each in ("\x85", "\u2028", "\u2029")}

_encoder = msgspec.json.Encoder()


def event_json(value: Any) -> bytes:
    """On one line, whoever reads it."""
    data = _encoder.encode(value)
    if not data.isascii():
        for plain, escaped in LINE_ENDS.items():
            data = data.replace(plain, escaped)
    return data
