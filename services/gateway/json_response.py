"""JSON answers, and JSON bodies read with a limit."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from shared.openai.errors import RequestError

_encoder = msgspec.json.Encoder()


class JsonResponse(Response):
    """Encodes plain data and msgspec structs."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes. Raises RequestError (413)."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestError(f"the request body is larger than {limit} bytes", None, "request_too_large", 413)
        chunks.append(chunk)
    return b"".join(chunks)
