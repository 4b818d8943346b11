"""A client of streamed completions that takes as little of the processor as it can."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream, as its client saw it."""

    ttft_ms: float
    num_tokens: int
    num_events: int


@dataclass(frozen=True, slots=True)
class Client:
    """One kept-alive connection. Reads lines and parses as little as it must, to leave the processor to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    model: str

    @classmethod
    async def connect(cls, port: int, model: str) -> Self:
        """``model``: what it asks for. Raises OSError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port), model)

    async def stream(self, prompt: list[int], max_tokens: int) -> Answer:
        """One completion, to its end. Raises ConnectionError where it is refused or cut."""
        wanted = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        body = json.dumps({**wanted, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        start = time.perf_counter()
        self.writer.write(head + body)
        if b" 200 " not in (status := await self.reader.readline()):
            raise ConnectionError(f"{status.decode().strip()} {(await self.reader.read(4096)).decode()}".strip())
        ttft_ms, num_events, usage = 0.0, 0, b""
        while (line := await self.reader.readline()) != b"data: [DONE]\n":
            if line.startswith(b"data: "):
                ttft_ms = ttft_ms or (time.perf_counter() - start) * 1e3
                num_events, usage = num_events + 1, line
            elif not line:
                raise ConnectionError("the stream was cut")
        while (await self.reader.readline()) != b"0\r\n":
            continue
        await self.reader.readline()
        return Answer(ttft_ms, json.loads(usage[6:])["usage"]["completion_tokens"], num_events)

    def close(self) -> None:
        self.writer.close()


async def first_tokens(port: int, model: str, rounds: int) -> list[float]:
    """TTFT in ms of requests one after the other, fastest first."""
    client = await Client.connect(port, model)
    answers = [await client.stream([100 + index % 1000] * 32, 2) for index in range(rounds + 20)]
    client.close()
    return sorted(answer.ttft_ms for answer in answers[20:])


async def all_at_once(clients: Sequence[Client], max_tokens: int) -> tuple[int, int]:
    """Tokens and events of one completion of each."""
    streams = (client.stream([100 + index] * 32, max_tokens) for index, client in enumerate(clients))
    answers = await asyncio.gather(*streams)
    return sum(answer.num_tokens for answer in answers), sum(answer.num_events for answer in answers)
