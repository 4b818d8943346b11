"""JSON answers."""

from typing import Any

import msgspec
from fastapi import Response

_encoder = msgspec.json.Encoder()


class JsonResponse(Response):
    """Encodes plain data and msgspec structs."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)
