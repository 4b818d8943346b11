"""A client of streamed completions that takes as little of the processor as it can."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass

READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream, as its client saw it."""

    ttft_ms: float
    num_tokens: int
    num_events: int


class Client:
    """One kept-alive connection. Reads lines and parses as little as it must, to leave the processor to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str) -> None:
        self._reader = reader
        self._writer = writer
        self._model = model

    @classmethod
    async def connect(cls, port: int, model: str) -> Client:
        """``model``: what it asks for. Raises OSError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port), model)

    async def is_ready(self) -> bool:
        self._writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b" 200 " in (await self._reader.read())[:16]

    async def stream(self, prompt: list[int], max_tokens: int) -> Answer:
        """One completion, to its end. Raises ConnectionError where it is refused or cut."""
        body = json.dumps(
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        start = time.perf_counter()
        self._writer.write(head + body)
        if b" 200 " not in (status := await self._reader.readline()):
            raise ConnectionError(f"{status.decode().strip()} {(await self._reader.read(4096)).decode()}".strip())
        ttft_ms, num_events, usage = 0.0, 0, b""
        while (line := await self._reader.readline()) != b"data: [DONE]\n":
            if line.startswith(b"data: "):
                ttft_ms = ttft_ms or (time.perf_counter() - start) * 1e3
                num_events, usage = num_events + 1, line
            elif not line:
                raise ConnectionError("the stream was cut")
        while (await self._reader.readline()) != b"0\r\n":
            continue
        await self._reader.readline()
        return Answer(ttft_ms, json.loads(usage[6:])["usage"]["completion_tokens"], num_events)

    def close(self) -> None:
        self._writer.close()


async def wait_ready(port: int) -> None:
    """Until a gateway is. Raises TimeoutError."""
    async with asyncio.timeout(READY_S):
        while True:
            with contextlib.suppress(OSError):
                if await (await Client.connect(port, "")).is_ready():
                    return
            await asyncio.sleep(0.1)


async def first_tokens(port: int, model: str, rounds: int) -> list[float]:
    """TTFT in ms of requests one after the other, fastest first."""
    client = await Client.connect(port, model)
    answers = [await client.stream([100 + index % 1000] * 32, 2) for index in range(rounds + 20)]
    client.close()
    return sorted(answer.ttft_ms for answer in answers[20:])
