"""Batches of mixed requests, each run to its end under several offline orders, on a device that adds its operators up
and on one that overlaps them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.lab.drawn import OfflineOption, OnlineOption, exponential, poisson
from benchmarks.lab.lab import Machine, machine_name
from benchmarks.lab.mixture import Mixture, Recipe
from benchmarks.lab.outcome import Recorder
from benchmarks.lab.request_sets import (
    DrawnSet,
    Lengths,
    QuestionSet,
    RequestSet,
    videos,
    with_known_lengths,
)
from benchmarks.lab.samples import fitted_model
from loadgen.errors import WorkloadError
from loadgen.progress import ReplayProgress
from loadgen.replay import ReplayPlan
from loadgen.report.report import OnlineReport
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from shared.latency.architectures import architecture_named
from shared.latency.demand import DemandModel
from shared.latency.devices import device_named
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.overlapping import Interference, OverlappingLatencyModel
from shared.scheduling.strategy import Strategy

SEED = 1
ONLINE_S = 3_000.0  # of online requests; less than the trace has, and longer than a batch beside them
UNTIL_DONE_S = 1e7  # longer than any batch takes
ADDS, OVERLAPS, IDEAL = "adds", "overlaps", "overlaps without interference"  # kinds of device: ours, NanoFlow's, none
DEVICES = (OVERLAPS, ADDS)
KINDS = {
    OVERLAPS: "A device that overlaps operators as NanoFlow's does, which none of our engines do",
    ADDS: "A device that runs one operator after another, as our engines do",
    IDEAL: "A device that overlaps operators without interference, as none of our engines do, nor any other",
}
INTERFERENCES = {
    ADDS: Interference(((0.0, 0.0), (1.0, 1.0))),
    OVERLAPS: Interference(),
    IDEAL: Interference(((0.0, 0.0), (1e-6, 1.0), (1.0, 1.0))),
}


@dataclass(frozen=True, slots=True)
class BlendOptions:
    """Without a file, lengths are drawn like those in it."""

    lengths: Annotated[Path | None, typer.Option(metavar="JSONL", help="ServeGen's quantiles of lengths.")] = None
    online: OnlineOption = None
    offline: OfflineOption = None
    shots: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's dev questions.")] = None
    questions: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's test questions.")] = None
    size: Annotated[int, typer.Option(min=100, help="Requests of a batch.")] = 6_000
    grid_size: Annotated[int, typer.Option(min=100, help="Requests of a batch in the grids of figures 9 to 12.")] = (
        4_000
    )
    video_tokens: Annotated[float, typer.Option(min=16.0, help="Of a video, in the mean; 16,000 in the paper.")] = 4e3
    density: Annotated[list[float] | None, typer.Option(min=0.01, help="Of the grids; repeatable.")] = None
    sharing: Annotated[list[float] | None, typer.Option(min=0.0, max=0.99, help="Of the grids; repeatable.")] = None
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 512
    seqs: Annotated[int, typer.Option(min=1, help="Requests of a step.")] = 1_024
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")] = None
    rate: Annotated[float, typer.Option(min=0.01, help="Online requests/s, beside which a batch runs.")] = 2.0
    budget_ms: Annotated[float, typer.Option(min=1.0, help="Latency budget beside online requests.")] = 60.0

    @property
    def densities(self) -> list[float]:
        return sorted(self.density or (0.8, 1.1, 1.4))

    @property
    def sharings(self) -> list[float]:
        return sorted(self.sharing or (0.05, 0.25, 0.45))


@dataclass(frozen=True, slots=True)
class Ordering:
    """An offline order, over a batch as it was submitted, set after set, or shuffled before. ``knobs``: of the order;
    ``knows_all``: all output lengths are known beforehand."""

    order: str
    is_shuffled: bool = False
    knobs: tuple[tuple[str, float], ...] = ()
    knows_all: bool = False

    def strategy(self, preset: str = "sarathi++", **given: float) -> Strategy:
        """Raises ValueError for what does not fit."""
        return Strategy.of(preset, offline_order=self.order, **dict(self.knobs), **given)


@dataclass(frozen=True, slots=True)
class Chats:
    """A compute-bound set. ``stands_for``: the paper's; ``option``: that gives its file, of which ``of_file`` makes
    lengths; ``drawn``: those without it."""

    name: str
    stands_for: str
    option: str
    of_file: Callable[[Path], Lengths]
    drawn: Lengths

    def make(self, options: BlendOptions) -> DrawnSet:
        """Raises LoadgenError."""
        path: Path | None = getattr(options, self.option)
        if path is None:
            return DrawnSet(f"{self.name} (drawn)", 0, self.drawn)
        return DrawnSet(self.name, 0, self.of_file(path))


@dataclass(frozen=True, slots=True)
class Work:
    """What a batch is mixed of: which compute-bound set beside questions and videos, and the recipe."""

    chats: Chats
    recipe: Recipe
    size: int

    @property
    def name(self) -> str:
        return f"({self.recipe.density:g}, {self.recipe.sharing:.0%})"


@dataclass(frozen=True, slots=True)
class BlendRun:
    """``seconds``: until the last request had ended; ``shapes``: of the steps; ``details``: the order's, at the end."""

    num_tokens: int
    seconds: float
    cached_share: float  # of the prompts' tokens, found when requests first started
    preemptions: int
    shapes: Sequence[BatchFeatures]
    details: Mapping[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Prompts and outputs, as section 5.2 has it."""
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Beside:
    """A batch beside online requests, from the start of both to the end of the batch."""

    online: OnlineReport
    offline_tokens_per_s: float
    cached_share: float  # of the batch's prompts, as that of a BlendRun


@dataclass(slots=True)
class BlendLab:
    """Makes batches and runs them; keeps both, so that figures which need the same run share it."""

    options: BlendOptions
    progress: ReplayProgress
    _mixtures: dict[Work, Mixture] = field(init=False, default_factory=dict)
    _runs: dict[tuple[Work, Ordering, str, int], BlendRun] = field(init=False, default_factory=dict)

    def machine(self, device: str) -> Machine:
        """``device``: the kind."""
        options = self.options
        return Machine(
            model="llama3.1-8b",
            device="a100-80g",
            max_num_batched_tokens=options.chunk,
            max_num_seqs=options.seqs,
            kv_blocks=options.kv_blocks,
            overlaps=device != ADDS,
        )

    def demand_model(self) -> DemandModel:
        """Of both devices: what operators take alone does not differ."""
        machine = self.machine(ADDS)
        return DemandModel.of(architecture_named(machine.model), device_named(machine.device))

    def mixture(self, work: Work) -> Mixture:
        """Raises LoadgenError."""
        if work not in self._mixtures:
            questions = QuestionSet(1, self.options.shots, self.options.questions)
            sets: list[RequestSet] = [work.chats.make(self.options), questions, videos(2, self.options.video_tokens)]
            self._mixtures[work] = work.recipe.mix(work.name, sets, work.size, self.demand_model(), SEED)
        return self._mixtures[work]

    def run(self, work: Work, ordering: Ordering, device: str, executors: int = 1) -> BlendRun:
        """Once. Raises LoadgenError."""
        key = (work, ordering, device, executors)
        if key not in self._runs:
            self._runs[key] = self._run(*key)
        return self._runs[key]

    def optimum_s(self, work: Work, device: str) -> float:
        """The achievable T_o of section 5.2: all that is computed with the most sharing, and all that is read; at once,
        with the interference, or one after the other."""
        computed = self.mixture(work).demanded.computed
        return INTERFERENCES[device].together_ms(computed.compute_ms, computed.memory_ms) / 1e3

    def beside(self, work: Work, ordering: Ordering, device: str) -> Beside:
        """The batch beside online requests under the budget. Raises LoadgenError, also where it is not done in time."""
        strategy = ordering.strategy("hygen", budget_ms=self.options.budget_ms)
        plan = ReplayPlan(self._online(), self._prompts(work, ordering), Scaling(duration_s=ONLINE_S))
        name = f"{device}, {ordering.order}, beside online work"
        phase, _ = self._phase(strategy, plan, device, ONLINE_S, name, planner=fitted_model(self.machine(device)))
        outcome = phase.outcome()
        if phase.num_offline_finished < phase.backlog_size:
            raise WorkloadError(f"beside online requests a batch takes longer than {ONLINE_S:g} s: give fewer --size")
        assert outcome.online is not None and outcome.offline is not None
        tokens_per_s = phase.num_offline_tokens / outcome.offline.elapsed_s
        return Beside(outcome.online, tokens_per_s, phase.offline_cached_share)

    def where(self, device: str, work: Work) -> str:
        """For captions."""
        options = self.options
        sets = f"{work.chats.make(options).name}, MMLU{'' if options.questions else ' (drawn)'}"
        mixed = f"{sets} and videos of {options.video_tokens:,.0f} tokens"
        return (
            f"{KINDS[device]}: {machine_name(self.machine(device))}, {options.chunk:,} tokens a step; "
            f"{work.size:,} requests of {mixed}"
        )

    def _run(self, work: Work, ordering: Ordering, device: str, executors: int) -> BlendRun:
        plan = ReplayPlan([], self._prompts(work, ordering), Scaling(duration_s=UNTIL_DONE_S))
        name = f"{work.name}, {device}, {ordering.order}{' shuffled' if ordering.is_shuffled else ''}"
        phase, shapes = self._phase(ordering.strategy(), plan, device, UNTIL_DONE_S, name, executors)
        report = phase.outcome().offline
        assert report is not None and report.exhausted
        return BlendRun(
            phase.num_offline_tokens,
            report.elapsed_s,
            phase.offline_cached_share,
            sum(each.replica.totals.preemptions for each in phase.system.executors.values()),
            shapes,
            phase.system.queue.pool.details(),
        )

    def _phase(
        self,
        strategy: Strategy,
        plan: ReplayPlan,
        device: str,
        duration_s: float,
        name: str,
        executors: int = 1,
        planner: LatencyModel | None = None,
    ) -> tuple[VirtualPhase, Sequence[BatchFeatures]]:
        """Run until the batch is done, and its steps. ``planner``: what plans are made with where there is a budget."""
        self.progress.phase(name, len(plan.requests), len(plan.prompts))
        setup = self.machine(device).setup(strategy, SEED)
        latency = setup.latency
        if isinstance(latency, OverlappingLatencyModel):
            latency = replace(latency, interference=INTERFERENCES[device])
        recorder = Recorder(latency)
        setup = replace(setup, latency=recorder, planner=planner or latency)
        workload = SimulatedWorkload(plan, setup, num_executors=executors)

        def on_change(phase: VirtualPhase) -> None:
            tell(phase, self.progress)
            if phase.num_offline_finished == phase.backlog_size:
                phase.stop()

        phase = workload.phase(setup, duration_s, bool(plan.requests), True, on_change)
        phase.run()
        return phase, recorder.shapes

    def _prompts(self, work: Work, ordering: Ordering) -> list[OfflinePrompt]:
        mixture = self.mixture(work)
        prompts = with_known_lengths(mixture.prompts) if ordering.knows_all else list(mixture.prompts)
        if ordering.is_shuffled:
            random.Random(SEED).shuffle(prompts)
        return prompts

    def _online(self) -> list[TraceRequest]:
        options = self.options
        if options.online is None:
            return poisson(options.rate, ONLINE_S, random.Random(SEED), exponential(1155), exponential(211))
        scaling = Scaling(duration_s=ONLINE_S, qps=options.rate, seed=SEED)
        return scaling.apply(read_trace(options.online))
