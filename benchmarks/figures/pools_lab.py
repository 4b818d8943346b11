"""Two machines, in two pools or both mixed, under online requests that come and go as a trace's do, beside offline ones
that come at a rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.figures.pool_run import PoolRun, Watch
from benchmarks.lab.drawn import Lognormal, OnlineOption
from benchmarks.lab.lab import Machine, machine_name
from benchmarks.lab.samples import fitted_model
from loadgen.errors import WorkloadError
from loadgen.progress import ReplayProgress
from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace
from services.profiler.simulation.workload import SimulatedWorkload
from shared.latency.features import BatchFeatures
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup

EXECUTORS = 2
MAX_NUM_SEQS = 1024
BACKLOG_SIZE = 200  # offline lengths; copies of them follow
FULL_BATCH = 256  # decodes
TIDE = 0.4  # of a drawn rate, about its mean


@dataclass(frozen=True, slots=True)
class PoolsOptions:
    """Without a trace, arrivals are drawn: Poisson, at a rate that rises and falls again."""

    online: OnlineOption = None
    other_online: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Other arrivals, which no rate is searched with: Mooncake's.")
    ] = None
    dataset: Annotated[list[str] | None, typer.Option(help="Of the figure's; repeatable. Default: all.")] = None
    duration: Annotated[
        float, typer.Option(min=1.0, help="Seconds of each run, in virtual time; the whole trace is squeezed into it.")
    ] = 120.0
    precision: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Of a rate that is searched, as a share of the most there can be.")
    ] = 0.1
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 1


@dataclass(frozen=True, slots=True)
class Dataset:
    """Lengths of online requests."""

    name: str
    prompt: Lognormal
    output: Lognormal


@dataclass(frozen=True, slots=True)
class Served:
    """A model, on its GPUs, with what its users are promised."""

    machine: Machine
    slo: TokenSlo


@dataclass(frozen=True, slots=True)
class PoolSystem:
    """What serves: a strategy, as far as the SLO does not decide it; of the two executors so many strict ones; tokens
    of a step; whether a step without online requests stops when one comes."""

    strategy: Callable[[TokenSlo], Strategy]
    strict: int
    chunk: int
    interrupts: bool = True

    def on(self, machine: Machine) -> Machine:
        return replace(
            machine,
            executors=EXECUTORS,
            strict=self.strict,
            max_num_batched_tokens=self.chunk,
            max_num_seqs=MAX_NUM_SEQS,
            interrupts=self.interrupts,
        )


@dataclass(frozen=True, slots=True)
class Most:
    """The largest offline rate that a search found to keep the SLO, and its run; the rate is 0 where none does."""

    rate: float
    run: PoolRun


@dataclass(frozen=True, slots=True)
class Case:
    """A dataset on a model."""

    served: Served
    dataset: Dataset

    @property
    def name(self) -> str:
        return f"{machine_name(self.served.machine)}, {self.dataset.name}"


@dataclass
class PoolsLab:
    """Makes runs and keeps them. ``offline``: lengths of the offline requests; ``alone``: by what online work alone is
    served, to which its load is scaled."""

    options: PoolsOptions
    progress: ReplayProgress
    offline: Dataset
    alone: PoolSystem
    _rates: dict[Case, float] = field(init=False, default_factory=dict)
    _runs: dict[tuple[Case, PoolSystem, float, float], PoolRun] = field(init=False, default_factory=dict)

    def rate(self, case: Case) -> float:
        """Online requests/s that ``alone`` just serves: of those that come in any sixth of the time, the peak, no more
        than 3% miss the SLO."""
        if case not in self._rates:
            prefill_s, decode_s = self._seconds(case, case.dataset)
            self._rates[case] = self._search(
                lambda rate: self.run(case, self.alone, rate, 0.0).keeps_at_worst,
                1 / max(prefill_s, decode_s),
            )
        return self._rates[case]

    def run(self, case: Case, system: PoolSystem, rate: float, offline_rate: float) -> PoolRun:
        """``rate``: of online requests; both in requests/s. Raises LoadgenError."""
        key = (case, system, rate, offline_rate)
        if key not in self._runs:
            self._runs[key] = self._run(*key)
        return self._runs[key]

    def most(self, case: Case, system: PoolSystem, rate: float | None = None) -> Most:
        """Beside so many online requests/s, else those of ``rate``: first more offline ones than can be served, and
        where that breaks the SLO fewer, by bisection."""
        rate = self.rate(case) if rate is None else rate
        full = self.capacity(case, rate)
        run = self.run(case, system, rate, full)
        if run.keeps:
            return Most(full, run)
        found = self._search(lambda each: self.run(case, system, rate, each).keeps, full)
        return Most(found, self.run(case, system, rate, found))

    def capacity(self, case: Case, rate: float) -> float:
        """Offline requests/s beside so many online ones, if both executors did nothing in vain, and a quarter."""
        left = EXECUTORS - rate * sum(self._seconds(case, case.dataset))
        return 1.25 * left / sum(self._seconds(case, self.offline))

    def setup(self, case: Case, system: PoolSystem) -> ExecutorSetup:
        """Of each executor, but for its role; it plans with a fitted model. Raises ValueError for what does not fit."""
        machine = system.on(case.served.machine)
        setup = machine.setup(system.strategy(case.served.slo), self.options.seed)
        return replace(setup, planner=fitted_model(machine))

    def chosen(self, cases: Sequence[Case]) -> list[Case]:
        """Those of the datasets that the options name. Raises WorkloadError for another name."""
        known, named = [case.dataset.name for case in cases], self.options.dataset
        if unknown := [name for name in named or () if name not in known]:
            raise WorkloadError(f"no dataset {unknown[0]!r}; known: {', '.join(known)}")
        return [case for case in cases if named is None or case.dataset.name in named]

    def elsewhere(self, **options: Any) -> PoolsLab:
        """The same with other options; it searches for its own rates."""
        return replace(self, options=replace(self.options, **options))

    def where(self) -> str:
        """For captions."""
        arrivals = "drawn arrivals" if self.options.online is None else "the arrivals of a trace"
        return f"{arrivals}, {self.options.duration:g} s"

    def _search(self, keeps: Callable[[float], bool], most: float) -> float:
        """The largest that keeps, to the precision; 0 where none does."""
        low, high = 0.0, most
        while high - low > self.options.precision * max(low, most / 8):
            middle = (low + high) / 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return low

    def _seconds(self, case: Case, dataset: Dataset) -> tuple[float, float]:
        """Of one executor, for the prompt and for the output of a request, where many are there."""
        setup = self.alone.on(case.served.machine).setup(Strategy(), self.options.seed)
        chunk, limits, prefill = self.alone.chunk, setup.limits, BatchFeatures()
        prefill.add_prefill(chunk, 0)
        context_len = round(dataset.prompt.mean + dataset.output.mean / 2)
        num_decodes = min(FULL_BATCH, limits.num_blocks * limits.block_size // context_len)
        decode = BatchFeatures()
        decode.add_decodes([context_len] * num_decodes)
        prefill_ms, decode_ms = (setup.latency.predict_ms(each) for each in (prefill, decode))
        return dataset.prompt.mean * prefill_ms / chunk / 1e3, dataset.output.mean * decode_ms / num_decodes / 1e3

    def _run(self, case: Case, system: PoolSystem, rate: float, offline_rate: float) -> PoolRun:
        options, machine = self.options, system.on(case.served.machine)
        requests = self.requests(case.dataset, rate)
        plan = ReplayPlan(requests, self._offline_prompts, Scaling(duration_s=options.duration, seed=options.seed))
        setup = self.setup(case, system)
        workload = SimulatedWorkload(plan, setup, num_executors=machine.executors, num_strict=machine.strict)
        watch = Watch(case.served.slo, options.duration / 4, len(requests), self.progress)
        self.progress.phase(f"{case.name}, {offline_rate:.2f} offline requests/s", len(requests), 0)
        has_offline = offline_rate > 0
        phase = workload.phase(
            setup, options.duration, True, has_offline, watch.on_change, offline_per_s=offline_rate or None
        )
        phase.run()
        return watch.run(phase)

    @cached_property
    def _offline_prompts(self) -> list[OfflinePrompt]:
        rng = random.Random(f"offline:{self.options.seed}")
        prompt, output = self.offline.prompt, self.offline.output
        return [OfflinePrompt(output(rng), num_prompt_tokens=prompt(rng)) for _ in range(BACKLOG_SIZE)]

    def requests(self, dataset: Dataset, rate: float) -> list[TraceRequest]:
        """So many in a second. Those of a higher rate are others; lengths are drawn. Raises LoadgenError."""
        options, rng = self.options, random.Random(f"online:{self.options.seed}")
        arrivals_s = _drawn(rate, options.duration, rng) if options.online is None else self._of_trace(rate)
        return [TraceRequest(arrival_s, dataset.prompt(rng), dataset.output(rng)) for arrival_s in arrivals_s]

    def _of_trace(self, rate: float) -> list[float]:
        options = self.options
        assert options.online is not None
        time_scale = (self._trace[-1].arrival_s + 1.0) / options.duration
        scaling = Scaling(duration_s=options.duration, qps=rate, time_scale=time_scale, seed=options.seed)
        return [request.arrival_s for request in scaling.apply(self._trace)]

    @cached_property
    def _trace(self) -> list[TraceRequest]:
        assert self.options.online is not None
        return list(read_trace(self.options.online))


def _drawn(rate: float, duration_s: float, rng: random.Random) -> list[float]:
    """Poisson; the rate is ``TIDE`` times itself lower at the ends than in the middle (Azure's hour)."""
    arrivals_s, time_s, most = list[float](), 0.0, rate * (1 + TIDE)
    while (time_s := time_s + rng.expovariate(most)) < duration_s:
        if rng.random() * most < rate * (1 - TIDE * math.cos(2 * math.pi * time_s / duration_s)):
            arrivals_s.append(time_s)
    return arrivals_s
