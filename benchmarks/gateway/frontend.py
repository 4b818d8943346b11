"""The front end alone: ``python -m benchmarks.gateway.frontend``. Gateway, bus and executor run as in the stack; the
engine is the simulated one, scaled so that it is never what is waited for.

Streamed tokens per second are given against the clock and against the processor time of the gateway's process, which
says what one core carries when client and executor are elsewhere. The TTFT is that of short prompts sent one after the
other with an engine that takes next to no time: all of it is added by gateway, bus and executor loop. Memory is that of
the gateway's process before the streams, at most while they run, and after.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Self

import psutil
import typer
import uvloop

from benchmarks.harness.command import DEFAULT_MODEL, Results, Row, benchmark, formatted, quantiles
from benchmarks.harness.stack import MIB, Stack, stack, usage_of

INSTANT = "0.0001"  # time scale of the engine for the TTFT
STEP = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "2048")  # so that a thousand streams run together
STREAMS = [16, 64, 128, 1000]


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

    async def stream(self, prompt: list[int], max_tokens: int) -> tuple[float, int, int]:
        """To its end: TTFT in ms, tokens and events. Raises ConnectionError where it is refused or cut."""
        wanted = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        body = json.dumps({**wanted, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
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
        return ttft_ms, json.loads(usage[6:])["usage"]["completion_tokens"], num_events

    def close(self) -> None:
        self.writer.close()


async def first_tokens(port: int, model: str, rounds: int) -> list[float]:
    """TTFT in ms of requests one after the other, fastest first."""
    client = await Client.connect(port, model)
    answers = [await client.stream([100 + index % 1000] * 32, 2) for index in range(rounds + 20)]
    client.close()
    return sorted(ttft_ms for ttft_ms, _, _ in answers[20:])


async def all_at_once(clients: Sequence[Client], max_tokens: int) -> tuple[int, int]:
    """Tokens and events of one completion of each."""
    streams = (client.stream([100 + index] * 32, max_tokens) for index, client in enumerate(clients))
    _, num_tokens, num_events = zip(*await asyncio.gather(*streams), strict=True)
    return sum(num_tokens), sum(num_events)


def front_end(time_scale: str) -> AbstractContextManager[Stack]:
    """One executor and one gateway, ready."""
    return stack(executor=("--engine", "sim", "--sim-time-scale", time_scale, *STEP), gateway=())


async def carry(running: Stack, num_streams: int, max_tokens: int) -> Row:
    """All streams at once."""
    gateway: psutil.Process = running.processes["gateway"]
    clients = [await Client.connect(running.port, DEFAULT_MODEL) for _ in range(num_streams)]
    await all_at_once(clients[:2], 8)
    with usage_of({"gateway": gateway}) as usage:
        num_tokens, num_events = await all_at_once(clients, max_tokens)
    for client in clients:
        client.close()
    cpu_s = usage.cpu_s["gateway"]
    return {
        "streams": str(num_streams),
        **formatted(",.0f", {"tokens": num_tokens, "tokens/s": num_tokens / usage.seconds}),
        **formatted(",.0f", {"gateway CPU %": 100 * cpu_s / usage.seconds, "tokens/s of one core": num_tokens / cpu_s}),
        "tokens/event": f"{num_tokens / num_events:.2f}",
        **formatted(".0f", {"MiB before": usage.before_mib["gateway"], "MiB at most": usage.most_mib["gateway"]}),
        "MiB after": f"{gateway.memory_info().rss / MIB:.0f}",
    }


@benchmark
def main(
    streams: list[int] = STREAMS,
    max_tokens: int = 400,
    time_scale: Annotated[str, typer.Option(help="Of the simulated engine, for the tokens per second.")] = "0.25",
    rounds: Annotated[int, typer.Option(help="Requests for the TTFT.")] = 500,
) -> Results:
    with front_end(time_scale) as running:
        for num_streams in streams:
            yield uvloop.run(carry(running, num_streams, max_tokens))
    with front_end(INSTANT) as running:
        times = uvloop.run(first_tokens(running.port, DEFAULT_MODEL, rounds))
    yield quantiles(times, {"added TTFT p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99})
