"""How long a request takes to move from one executor to another, and what it costs their steps: ``python -m
benchmarks.engine.handover``.

Two executors with the torch engine, in processes of their own: a relaxed one that computes prompts all the time, and a
strict one that decodes all the time. Requests whose prompts are as long as asked for come to the relaxed one, one after
the other, and go to the strict one with their KV. A move is counted from where the giver holds the request to where the
taker's answer has come. A gap is the time between two steps of a loop in which it ran none, as the bus tells of them;
those in which nothing moved are shown beside.
"""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated

import typer
import uvloop

from benchmarks.engine.batches import prompt_of
from benchmarks.harness.command import Results, Row, benchmark, formatted, quantile
from benchmarks.harness.stack import Stack, stack
from services.executor.engines.torch.threads import cpu_count
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.handover import Taken
from shared.protocol.profiling.measurements import LatencySample
from shared.protocol.requests import AbortRequests, GenerateRequest, HeldRequests
from shared.protocol.sampling import SamplingParams
from shared.protocol.tokens import StepTokens
from shared.scheduling.request import Kind

GATEWAY, RELAXED, STRICT = "bench", "relaxed", "strict"
ENGINE = ("--engine", "torch", "--threads", "1", "--dtype", "float32", "--kv-blocks", "1200", "--preset", "ooco")
READY_S = 180.0
NUM_DECODES, LONG = 4, 4000  # requests that generate at the strict one all the time, and their tokens
BESIDE_TOKENS = 256  # of the prompts that the relaxed one computes beside
MOST_PROMPTS = 2  # of these at a time


@dataclass(slots=True)
class Gaps:
    """Of one loop: when each began and ended."""

    last_s: float = 0.0
    found: list[tuple[float, float]] = field(default_factory=list)

    def add(self, latency_ms: float) -> None:
        """A step has ended that took so long."""
        now_s = time.perf_counter()
        if self.last_s:
            self.found.append((self.last_s, max(self.last_s, now_s - latency_ms / 1e3)))
        self.last_s = now_s


class Bench:
    """The client of both executors."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.beats: dict[str, Heartbeat] = {}
        self.gaps = {RELAXED: Gaps(), STRICT: Gaps()}
        self.num_tokens: dict[str, int] = {}
        self.taken_s: dict[str, float] = {}
        self.last_token_s: dict[str, float] = {}  # at the giver
        self.pause_ms: dict[str, float] = {}  # from the last token there to the first at the taker
        self.moved_ms: list[float] = []
        self._ids = itertools.count()

    async def listen(self) -> None:
        await self.bus.serve(subjects.alive(GATEWAY), HeldRequests, self._on_held)
        await self.bus.subscribe(subjects.tokens(GATEWAY), StepTokens, self._on_tokens)
        await self.bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)
        await self.bus.subscribe(subjects.TAKEN, Taken, self._on_taken)
        await self.bus.subscribe(subjects.LATENCY_SAMPLES, LatencySample, self._on_sample)
        await self.bus.flush()

    async def ask(self, num_tokens: int, max_tokens: int) -> str:
        """A request to the relaxed one; its id."""
        number = next(self._ids)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        request_id = f"request-{number}"
        request = GenerateRequest(
            request_id, Kind.ONLINE, prompt_of(num_tokens, number), sampling, time.time(), GATEWAY
        )
        await self.bus.publish(subjects.inbox(RELAXED), request)
        return request_id

    async def keep_prompts_coming(self) -> None:
        """Those end with their first token, so that they move nowhere."""
        while True:
            asked = [await self.ask(BESIDE_TOKENS, 1) for _ in range(MOST_PROMPTS)]
            await until(lambda: asked[0] in self.num_tokens)  # noqa: B023 - awaited here

    async def _on_held(self, _: HeldRequests) -> AbortRequests:
        return AbortRequests([])

    async def _on_tokens(self, message: StepTokens) -> None:
        now_s = time.perf_counter()
        for output in message.outputs:
            request_id = output.request_id
            self.num_tokens[request_id] = self.num_tokens.get(request_id, 0) + len(output.token_ids)
            if message.executor_id == RELAXED:
                self.last_token_s[request_id] = now_s
            elif request_id not in self.pause_ms:
                self.pause_ms[request_id] = (now_s - self.last_token_s[request_id]) * 1e3

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.beats[heartbeat.info.executor_id] = heartbeat
        moved = heartbeat.handover_ms  # of one second, in which hardly ever two move
        self.moved_ms += [moved.mean_ms() or 0.0] * moved.num_samples

    async def _on_taken(self, taken: Taken) -> None:
        self.taken_s[taken.request_id] = time.perf_counter()

    async def _on_sample(self, sample: LatencySample) -> None:
        self.gaps[sample.executor_id].add(sample.latency_ms)


async def until(holds: Callable[[], bool]) -> None:
    """For what has no event. Raises TimeoutError."""
    async with asyncio.timeout(READY_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def pools(made: Stack) -> AsyncIterator[Bench]:
    """Both executors, which have met."""
    for role in (RELAXED, STRICT):
        made.start("executor", *ENGINE, "--executor-id", role, "--role", role, name=role)
    bus = await Bus.connect(made.nats_url, "bench")
    bench = Bench(bus)
    await bench.listen()
    await until(lambda: len(bench.beats) == 2)
    yield bench
    await bus.close()


async def measure(nats: Stack, num_tokens: int, moves: int) -> list[Row]:
    async with pools(nats) as bench:
        for _ in range(NUM_DECODES):
            decoding = await bench.ask(num_tokens=16, max_tokens=LONG)
            await until(lambda: decoding in bench.taken_s)  # noqa: B023 - awaited here
        beside = asyncio.create_task(bench.keep_prompts_coming())
        bench.moved_ms.clear()
        began_s, windows = time.perf_counter(), list[tuple[float, float]]()
        moved: list[str] = []
        while len(moved) < moves:
            request_id = await bench.ask(num_tokens, max_tokens=8)
            await until(lambda: bench.num_tokens.get(request_id, 0) == 8)  # noqa: B023 - awaited here
            if request_id in bench.taken_s:
                moved.append(request_id)
                windows.append((bench.last_token_s[request_id], bench.taken_s[request_id]))
        await until(lambda: len(bench.moved_ms) >= moves)
        beside.cancel()
        return [*move_rows(bench, moved), *gap_rows(bench, began_s, windows)]


def move_rows(bench: Bench, moved: list[str]) -> list[Row]:
    held, pauses = sorted(bench.moved_ms), sorted(bench.pause_ms[request_id] for request_id in moved)
    return [
        {"what": what} | formatted(".1f", {"p50 ms": quantile(ms, 0.5), "p90 ms": quantile(ms, 0.9), "longest": ms[-1]})
        for what, ms in (("held by the giver", held), ("from its last token to the first at the taker", pauses))
    ]


def gap_rows(bench: Bench, began_s: float, windows: list[tuple[float, float]]) -> list[Row]:
    """Of each loop: gaps in which something moved for a time, and the others."""
    rows: list[Row] = []
    for executor_id, gaps in bench.gaps.items():
        while_moving, else_ = list[float](), list[float]()
        for start_s, end_s in gaps.found:
            if start_s > began_s:
                moves = any(start_s <= until_s and from_s <= end_s for from_s, until_s in windows)
                (while_moving if moves else else_).append((end_s - start_s) * 1e3)
        for what, found in (("while a request moves", while_moving), ("else", else_)):
            ms = sorted(found) or [0.0]
            figures = {"p50 ms": quantile(ms, 0.5), "p90 ms": quantile(ms, 0.9), "longest": ms[-1]}
            rows.append({"what": f"gap of the {executor_id} loop, {what}"} | formatted(".1f", figures))
    return rows


@benchmark
def main(
    tokens: Annotated[int, typer.Option(help="Of the prompt of a request that moves.")] = 1000,
    moves: Annotated[int, typer.Option(help="One after the other.")] = 20,
    tcp: Annotated[bool, typer.Option("--tcp", help="KV goes over TCP within one machine too.")] = False,
) -> Results:
    if tcp:
        os.environ["UCX_TLS"] = "tcp"
    yield f"SmolLM2-135M, float32, {cpu_count()} cores, a thread an engine: {moves} requests of {tokens} tokens"
    with stack() as made:
        yield from uvloop.run(measure(made, tokens, moves))
