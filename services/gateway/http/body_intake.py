"""JSON bodies on their way in: bounded one by one, all together, and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from services.gateway.http.errors import Refusal
from shared.openai.errors import RequestError

RETRY_S = 5.0
SMALL_BYTES = 64 * 1024  # a body up to this size always passes: nobody is kept out by those who send large ones


class BodyIntake:
    """Counts the bytes of all bodies that are being read or worked on. Too many, and large ones are refused."""

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self.timeout_s = timeout_s
        self._num_bytes = 0

    @asynccontextmanager
    async def body(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The whole body, at most ``limit`` bytes; it counts until it is left. Raises RequestError (413, before reading
        where its length is told; 408) and Refusal (503)."""
        if int(request.headers.get("content-length", 0)) > limit:
            raise _too_large(limit)
        body = bytearray()
        try:
            await self._read(request, limit, body)
            yield bytes(body)
        finally:
            self._num_bytes -= len(body)

    async def _read(self, request: Request, limit: int, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    self._num_bytes += len(chunk)
                    if len(body) > limit:
                        raise _too_large(limit)
                    if len(body) > SMALL_BYTES and self._num_bytes > self._max_bytes:
                        message = "too many large requests are coming in; try again later"
                        raise Refusal("bodies", message, RETRY_S)
        except TimeoutError as error:
            message = f"the request body did not come within {self.timeout_s:g} s"
            raise RequestError(message, None, "request_timeout", 408) from error


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the request body is larger than {limit} bytes", None, "request_too_large", 413)
