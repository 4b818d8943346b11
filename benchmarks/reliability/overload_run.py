"""A stack under more than it can do: what it can do first, then most of that, then many times that, then nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.reliability.kinds.looking import Lists, Viewers
from benchmarks.reliability.kinds.offline import Batches, BatchFile, Flex, Uploads
from benchmarks.reliability.kinds.online import Connections, Leavers, OpenStreams, Requests
from benchmarks.reliability.kinds.slow_readers import SlowReaders
from benchmarks.reliability.kinds.tally import Kind, Tally
from benchmarks.reliability.sampling import Sampler
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from loadgen.report.metrics import LatencySamples, summarize
from services.local.stack.data_dir import DataDir

PATIENCE_S = 600.0
PROBE_PERIOD_S = 0.25
SLOW_TOKENS = 700  # whose events are more than the kernel and the gateway keep for a client that does not read
NUM_PROBES = 10  # in a row that have to be served as before


@dataclass(frozen=True, slots=True)
class Plan:
    """``num_clients``: of the closed loop by which the capacity is found; ``times``: of it, in requests a second and in
    connections; ``lines``: of each batch and upload."""

    model: str
    num_prompt_tokens: int = 200
    num_output_tokens: int = 100
    num_clients: int = 32
    capacity_s: float = 45.0
    steady_s: float = 60.0
    overload_s: float = 600.0
    times: float = 10.0
    num_lines: int = 2000
    steady_share: float = 0.8
    sample_s: float = 2.0


@dataclass(slots=True)
class Stage:
    """``records``: of the streams that were answered whole, ``light``: of those of a client with one at a time;
    ``tallies``: of all that was sent. Seconds are on ``time.perf_counter``, the ``unix_s`` when it began and ended."""

    name: str
    start_s: float = 0.0
    end_s: float = 0.0
    unix_s: tuple[float, float] = (0.0, 0.0)
    records: list[RequestRecord] = field(default_factory=list)
    light: list[RequestRecord] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)

    def keep(self, record: RequestRecord) -> None:
        if record.ok:
            self.records.append(record)

    def keep_light(self, record: RequestRecord) -> None:
        if record.ok:
            self.light.append(record)


@dataclass(slots=True)
class Probe:
    """One small stream, ``at_s`` after the overload's end; ``ttft_s`` is None for one that was not served."""

    at_s: float
    ttft_s: float | None
    error: str | None = None


@dataclass(slots=True)
class OverloadRun:
    """Fills up as it goes, so that one that is cut short can be reported."""

    plan: Plan
    data_dir: DataDir
    samples_file: Path
    tell: Callable[[str, float], None] = lambda name, seconds: None
    stages: list[Stage] = field(default_factory=list)
    capacity: float = 0.0  # requests a second
    idle_ttft_s: list[float] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    wanted_s: float = 0.0  # to a probe's first token
    recovered_s: float | None = None
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.data_dir, self.samples_file)

    async def run(self) -> None:
        """Raises ServerError where the stack does not serve even when it is idle."""
        url = self.data_dir.read_stack().http_url
        async with OpenAIClient(url, PATIENCE_S) as client, asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self.sampler.run(self.plan.sample_s))
            for _ in range(NUM_PROBES):
                probe = await self._probe(client, time.perf_counter())
                self.idle_ttft_s += [probe.ttft_s] if probe.ttft_s is not None else []
            await self._find_capacity(client)
            with self._stage(Stage("80% of that"), self.plan.steady_s) as stage:
                rate = self.plan.steady_share * self.capacity
                streams = OpenStreams(client, self._requests("steady"), rate, tell=stage.keep)
                await self._run_for([streams], self.plan.steady_s, stage)
            await self._overload(client, url)
            sampling.cancel()

    async def _find_capacity(self, client: OpenAIClient) -> None:
        """By what ends in the later two thirds of a closed loop."""
        with self._stage(Stage("capacity"), self.plan.capacity_s) as stage:
            clients = Connections(client, self._requests("capacity"), self.plan.num_clients, tell=stage.keep)
            await self._run_for([clients], self.plan.capacity_s, stage)
            from_s, to_s = stage.start_s + self.plan.capacity_s / 3, stage.start_s + self.plan.capacity_s
        ended = sum(from_s <= (record.finished_s or 0.0) < to_s for record in stage.records)
        self.capacity = max(1, ended) / (to_s - from_s)

    async def _overload(self, client: OpenAIClient, url: str) -> None:
        plan = self.plan
        async with OpenAIClient(url, PATIENCE_S, "a-light-client") as light:
            stage = Stage(f"{plan.times:g} times that")
            streams = OpenStreams(client, self._requests("open"), plan.times * self.capacity, tell=stage.keep)
            num_clients = round(plan.times * plan.num_clients)
            connections = Connections(client, self._requests("closed"), num_clients, tell=stage.keep)
            visitor = Connections(light, self._requests("light"), 1, tell=stage.keep_light)
            visitor.tally.name = "a light client"
            others = self._others(client, url)
            with self._stage(stage, plan.overload_s):
                kinds: list[Kind] = [streams, connections, visitor, *others]
                await self._run_for(kinds, plan.overload_s, stage, lambda: self._recover(client))

    def _others(self, client: OpenAIClient, url: str) -> list[Kind]:
        """Beside the streams."""
        num_clients = self.plan.num_clients
        return [
            Flex(client, self._requests("flex"), 2 * self.capacity),
            Batches(client, self._file("batches"), num_clients=8),
            Uploads(client, self._file("uploads"), num_clients=4),
            Lists(client, self.capacity),
            Leavers(client, self._requests("leavers"), self.capacity),
            SlowReaders(url, self._requests("slow", SLOW_TOKENS), max(1, num_clients // 8)),
            Viewers(url, 4),
        ]

    async def _recover(self, client: OpenAIClient) -> None:
        """Until NUM_PROBES in a row are served as before: with a first token as soon as 99 of 100 streams had it beside
        80% of the load."""
        self.tell("until all is as before", PATIENCE_S)
        end_s, in_a_row = self.stages[-1].end_s, 0
        summary = summarize(LatencySamples.of(self.stages[1].records).ttft_ms)
        self.wanted_s = summary.p99 / 1e3 if summary else max(self.idle_ttft_s)
        while in_a_row < NUM_PROBES and time.perf_counter() < end_s + PATIENCE_S:
            probe = await self._probe(client, end_s)
            self.probes.append(probe)
            in_a_row = in_a_row + 1 if probe.ttft_s is not None and probe.ttft_s <= self.wanted_s else 0
            if in_a_row == 1:
                self.recovered_s = probe.at_s
            await asyncio.sleep(PROBE_PERIOD_S)
        if in_a_row < NUM_PROBES:
            self.recovered_s = None

    async def _run_for(
        self, kinds: Sequence[Kind], seconds: float, stage: Stage, then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Then nothing more is sent: streams that were taken go on to their end, beside ``then``; the others' clients
        leave."""
        stage.tallies = [kind.tally for kind in kinds]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(kind.run()) for kind in kinds]
            await asyncio.sleep(seconds)
            stage.end_s = time.perf_counter()
            for kind, task in zip(kinds, running, strict=True):
                if isinstance(kind, OpenStreams | Connections):
                    kind.stop()
                else:
                    task.cancel()
            if then is not None:
                await then()

    async def _probe(self, client: OpenAIClient, since_s: float) -> Probe:
        record = RequestRecord(time.perf_counter())
        requests = Requests(self.plan.model, 20, 4, f"probe-{record.due_s}")
        await client.stream(requests.stream(), record)
        ttft_s = record.token_times_s[0] - record.due_s if record.ok and record.token_times_s else None
        return Probe(record.due_s - since_s, ttft_s, record.error)

    def _requests(self, salt: str, num_output_tokens: int | None = None) -> Requests:
        plan = self.plan
        return Requests(plan.model, plan.num_prompt_tokens, num_output_tokens or plan.num_output_tokens, salt)

    def _file(self, salt: str) -> BatchFile:
        return BatchFile(self._requests(salt), self.plan.num_lines, self.samples_file.parent)

    @contextlib.contextmanager
    def _stage(self, stage: Stage, seconds: float) -> Iterator[Stage]:
        self.tell(stage.name, seconds)
        stage.start_s, began_s = time.perf_counter(), time.time()
        self.stages.append(stage)
        try:
            yield stage
        finally:
            stage.end_s = stage.end_s or time.perf_counter()
            stage.unix_s = began_s, began_s + stage.end_s - stage.start_s
