"""Time between tokens of an executor by itself, with the next step ready behind the one that runs and without:
``python -m benchmarks.engine.steps_ahead``.

Two executors, each a process, are alike but for ``takes_steps_ahead`` of their engines (docs/architecture.md), and have
streams in turns, over a bus of their own.
"""

import asyncio
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import msgspec
import typer

from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.stack import stack
from benchmarks.harness.table import quantile
from services.executor.__main__ import serve
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.requests import AbortRequests, GenerateRequest, HeldRequests
from shared.protocol.sampling import SamplingParams
from shared.protocol.tokens import StepTokens
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer

CLIENT = "gateway-steps-ahead"
NAMES = {True: "ahead", False: "plain"}
PROMPT_TOKENS, WARM_UP_TURNS, LOAD_S = 32, 2, 300.0


def serve_executor(settings: ExecutorSettings, takes_steps_ahead: bool) -> None:
    """As ``services.executor`` does, with an engine that does or does not; until it is killed."""
    engine = load_engine(settings)
    engine.spec = msgspec.structs.replace(engine.spec, takes_steps_ahead=takes_steps_ahead)
    serve(settings, engine, Tokenizer.from_folder(Path(settings.model_path)))


class Streams:
    """Online requests at one executor after the other, as a gateway sends them."""

    def __init__(self, bus: Bus, num_tokens: int) -> None:
        self._bus = bus
        self._sampling = SamplingParams(num_tokens, 0.0, ignore_eos=True)
        self._numbers, self._rng = itertools.count(), random.Random(0)
        self._times_s: dict[str, list[float]] = {}
        self._num_open = 0
        self._all_ended = asyncio.Event()

    async def begin(self) -> None:
        """Be a gateway that is there."""

        async def alive(_: HeldRequests) -> AbortRequests:
            return AbortRequests([])

        await self._bus.subscribe(subjects.tokens(CLIENT), StepTokens, self._on_tokens)
        await self._bus.serve(subjects.alive(CLIENT), HeldRequests, alive)
        await self._bus.flush()

    async def tbt_ms(self, executor: str, num_streams: int) -> float:
        """The mean time between tokens of so many streams that begin together."""
        self._times_s.clear()
        self._all_ended.clear()
        self._num_open = num_streams
        for _ in range(num_streams):
            prompt = [self._rng.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)]
            name = f"stream-{next(self._numbers)}"
            self._times_s[name] = []
            request = GenerateRequest(name, Kind.ONLINE, prompt, self._sampling, time.time(), CLIENT)
            await self._bus.publish(subjects.inbox(executor), request)
        await asyncio.wait_for(self._all_ended.wait(), LOAD_S)
        return mean((times[-1] - times[0]) / (len(times) - 1) for times in self._times_s.values()) * 1e3

    async def _on_tokens(self, step: StepTokens) -> None:
        now_s = time.perf_counter()
        for output in step.outputs:
            self._times_s[output.request_id] += [now_s] * len(output.token_ids)
            if output.finish_reason is not None:
                self._num_open -= 1
        if not self._num_open:
            self._all_ended.set()


@contextmanager
def executors(settings: ExecutorSettings) -> Iterator[None]:
    """One that takes steps ahead and one that does not, by their NAMES."""
    spawning = multiprocessing.get_context("spawn")  # engines have threads, which no fork survives
    processes = []
    for takes_steps_ahead, name in NAMES.items():
        own = msgspec.structs.replace(settings, executor_id=name)
        processes.append(spawning.Process(target=serve_executor, args=(own, takes_steps_ahead), daemon=True))
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


async def rows(nats_url: str, counts: list[int], turns: int, tokens: int) -> list[Row]:
    """One for each number of streams."""
    bus = await Bus.connect(nats_url, "steps-ahead")
    try:
        streams = Streams(bus, tokens)
        await streams.begin()
        async with asyncio.timeout(LOAD_S):
            for name in NAMES.values():
                await _beaten(bus, name)
        return [await _row(streams, count, turns) for count in counts]
    finally:
        await bus.close()


async def _beaten(bus: Bus, executor: str) -> None:
    """Return at the next heartbeat of it: it takes requests."""
    heard = asyncio.Event()

    async def on_heartbeat(_: Heartbeat) -> None:
        heard.set()

    subscription = await bus.subscribe(subjects.heartbeat(executor), Heartbeat, on_heartbeat)
    await heard.wait()
    await subscription.stop()


async def _row(streams: Streams, num_streams: int, turns: int) -> Row:
    taken: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(WARM_UP_TURNS + turns):
        for ahead in (True, False) if turn % 2 else (False, True):
            tbt_ms = await streams.tbt_ms(NAMES[ahead], num_streams)
            if turn >= WARM_UP_TURNS:
                taken[ahead].append(tbt_ms)
    ratios = sorted(ahead / plain for ahead, plain in zip(taken[True], taken[False], strict=True))
    return {
        "streams": str(num_streams),
        **formatted(".2f", {"TBT ms": median(taken[False]), "with steps ahead, ms": median(taken[True])}),
        **formatted(".3f", {"ratio": median(ratios), "lower quartile": quantile(ratios, 0.25)}),
        **formatted(".3f", {"upper quartile": quantile(ratios, 0.75)}),
    }


@benchmark
def main(
    engines: Annotated[str, typer.Option(help="Of sim, torch and vllm, with spaces.")] = "sim torch",
    time_scales: Annotated[str, typer.Option(help="Of the sim engine, whose steps are an A100's, with spaces.")] = (
        "0.3 1 2.5"
    ),
    threads: Annotated[int, typer.Option(min=1, help="Of an engine on a CPU.")] = 1,
    streams: Annotated[str, typer.Option(help="How many at a time, with spaces.")] = "1 8",
    turns: Annotated[int, typer.Option(min=1, help="Of each executor.")] = 12,
    tokens: Annotated[int, typer.Option(min=2, help="Of each stream.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    counts = [int(each) for each in streams.split()]
    for engine in engines.split():
        for scale in map(float, time_scales.split() if engine == "sim" else ["1"]):
            with stack() as running:
                settings = ExecutorSettings(
                    model_path=str(model_folder(model)),
                    nats=running.nats_url,
                    log_level="error",
                    engine=engine,
                    threads=threads,
                    kv_blocks=256,
                    sim_time_scale=scale,
                    strategy=Strategy.of("sarathi++"),
                )
                name = f"sim, {scale:g} times" if engine == "sim" else f"{engine}, CPU threads: {threads}"
                with executors(settings):
                    for row in asyncio.run(rows(running.nats_url, counts, turns, tokens)):
                        yield {"engine": name, **row}
