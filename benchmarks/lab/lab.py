"""The lab: this workload on this machine under that system, and what came of it. All that benchmarks and figures ask of
the simulator is asked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from benchmarks.lab.outcome import Found, Measured, Recorder, Run
from benchmarks.lab.recording import Recording
from loadgen.client.records import RequestRecord
from loadgen.progress import NoProgress, RenamedProgress, ReplayProgress
from loadgen.replay import ReplayPlan
from loadgen.report.metrics import LatencySamples, online_report
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.encoding import PromptEncoder as PromptEncoder
from services.profiler.simulation.setup import Machine as Machine
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.simulated import SimulatedTrials, search_slos
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.executors import ExecutorCounters
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.placement.routing import choose
from shared.scheduling.strategy import Strategy
from shared.simulation.executor import Progress as Progress
from shared.simulation.router import Choose
from shared.simulation.setup import ExecutorSetup
from shared.simulation.system import VirtualSystem as VirtualSystem

OnStep = Callable[[float, ExecutorCounters], None]  # told the time in seconds and the totals after each step
SEED = 0
PRECISION = 0.05  # from one value that a search tries to the next, as a share


@dataclass(frozen=True, slots=True)
class Load:
    """Online requests within ``duration_s`` seconds, beside a backlog. ``wave_size``: so many offline requests are
    submitted at a time, the next when those have ended; None submits all at once."""

    requests: Sequence[TraceRequest]
    prompts: Sequence[OfflinePrompt]
    duration_s: float
    wave_size: int | None = None


@dataclass(frozen=True, slots=True)
class System:
    """What serves: a strategy; a ``planner`` of ``Bench.planners``, else plans are made with what steps take; and how
    the router chooses."""

    strategy: Strategy
    planner: str = ""
    choose: Choose = choose

    @classmethod
    def of(cls, preset: str, planner: str = "", **given: str | float) -> System:
        """The preset, but for what is given: fields of a strategy. Raises ValueError for what does not fit."""
        return cls(Strategy.of(preset, **given), planner)

    @property
    def preset(self) -> str:
        return self.strategy.preset

    def under(self, value: float | None) -> Strategy:
        """With this value of its knob, a latency budget in ms or offline requests/s; None where it has none."""
        if value is None:
            return self.strategy
        if self.strategy.uses_latency_budget:
            return msgspec.structs.replace(self.strategy, latency_budget="fixed", budget_ms=value)
        return msgspec.structs.replace(self.strategy, offline_qps=value)

    def budget(self, budget_ms: float) -> float | None:
        """None where it has none."""
        return budget_ms if self.strategy.uses_latency_budget else None


HYGEN, STAR, SARATHI, ONLINE_ONLY = map(System.of, ("hygen", "hygen-star", "sarathi++", "online-only"))
SLO = HYGEN.strategy.token_slo  # that attainment and deadlines are about, in every preset unless it is told otherwise


@dataclass(slots=True)
class Bench:
    """Runs systems on one machine under one load; what was run before is not run again. ``planners``: latency models
    that systems may name. ``precision``: between two values that a search tries."""

    machine: Machine
    load: Load
    progress: ReplayProgress = field(default_factory=NoProgress)
    precision: float = PRECISION
    planners: dict[str, LatencyModel] = field(default_factory=dict)
    _workload: SimulatedWorkload = field(init=False)
    _runs: dict[tuple[System, float | None], Run] = field(init=False, default_factory=dict)
    _trials: dict[System, SimulatedTrials] = field(init=False, default_factory=dict)
    _recordings: dict[System, Recording] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        plan = ReplayPlan(self.load.requests, self.load.prompts, Scaling(duration_s=self.load.duration_s, seed=SEED))
        setup, wave_size = self._setup(ONLINE_ONLY, None), self.load.wave_size
        self._workload = SimulatedWorkload(plan, setup, wave_size=wave_size, num_executors=self.machine.executors)

    @property
    def name(self) -> str:
        """The machine's."""
        return machine_name(self.machine)

    @property
    def online_only(self) -> Run:
        return self.run(ONLINE_ONLY)

    def run(self, system: System, value: float | None = None) -> Run:
        """``value``: of the preset's knob, None where it has none."""
        if (system, value) not in self._runs:
            of_value = "" if value is None else f", {value:g}"
            self.progress.phase(f"{self.name}, {system.preset}{of_value}", len(self.load.requests), 0)
            phase = self._phase(system, value, lambda phase: tell(phase, self.progress))
            self._runs[system, value] = _run_of(phase, system.strategy.token_slo)
        return self._runs[system, value]

    def watch(self, system: System, value: float | None, on_step: OnStep) -> Sequence[RequestRecord]:
        """A run of its own, and its online requests."""
        phase = self._phase(system, value, lambda phase: on_step(phase.now_s, phase.executor.replica.totals))
        return phase.records

    def record(self, system: System) -> Recording:
        """A run of its own, looked at each second; made once."""
        if system not in self._recordings:
            self.progress.phase(f"{self.name}, {system.preset}", len(self.load.requests), 0)
            recording = Recording(self.load.duration_s)

            def on_change(phase: VirtualPhase) -> None:
                recording.on_change(phase)
                tell(phase, self.progress)

            recording.records = self._phase(system, None, on_change).records
            self._recordings[system] = recording
        return self._recordings[system]

    def shapes(self, system: System, value: float | None = None) -> list[BatchFeatures]:
        """Of each step of a run of its own, in order."""
        recorder = Recorder(setup_of(self.machine).latency)
        self._phase(system, value, None, recorder)
        return recorder.shapes

    def largest(self, system: System, slos: Sequence[str]) -> Found:
        """What the profiler finds for these SLOs (HyGen section 4.2; for HyGen*, section 5.1)."""
        trials = self._trials_of(system)
        search = search_slos(trials, [parse_slo(expr) for expr in slos], self.precision)
        if search.value is None:
            return Found(trials.knob, None, self.online_only, unbounded=False)
        unbounded = search.value >= trials.span().highest
        outcome = trials.outcomes[search.value]
        return Found(trials.knob, search.value, Measured(outcome.online, outcome.offline), unbounded)

    def num_trials(self, system: System) -> int:
        """Runs that searches have made so far."""
        return len(self._trials_of(system).outcomes)

    def _phase(
        self,
        system: System,
        value: float | None,
        on_change: Callable[[VirtualPhase], None] | None,
        latency: LatencyModel | None = None,
    ) -> VirtualPhase:
        """Run to its end. ``latency``: how long steps take, else the machine's own."""
        setup = self._setup(system, value)
        setup = replace(setup, latency=latency or setup.latency)
        serves_offline = setup.strategy.serves_offline
        phase = self._workload.phase(setup, self.load.duration_s, True, serves_offline, on_change, system.choose)
        phase.run()
        return phase

    def _trials_of(self, system: System) -> SimulatedTrials:
        if system not in self._trials:
            named = RenamedProgress(self.progress, f"{self.name}, {system.preset}: {{}}".format)
            setup = self._setup(system, 1.0)  # the knob is replaced in each run
            self._trials[system] = SimulatedTrials(self._workload, setup, self.load.duration_s, named)
        return self._trials[system]

    def _setup(self, system: System, value: float | None) -> ExecutorSetup:
        setup = self.machine.setup(system.under(value), SEED)
        return replace(setup, planner=self.planners[system.planner]) if system.planner else setup


def machine_name(machine: Machine) -> str:
    """For captions: the model on its GPUs, and whether they do what none of our engines does."""
    gpus = "" if machine.tensor_parallel == 1 else f"{machine.tensor_parallel}x "
    stages = "" if machine.pipeline_depth == 1 else f"{machine.pipeline_depth} stages of "
    return f"{machine.model} on {stages}{gpus}{machine.device}{' that overlaps' if machine.overlaps else ''}"


def setup_of(machine: Machine) -> ExecutorSetup:
    """An executor of it; steps take what they take without noise. Raises ValueError for unknown names."""
    return machine.setup(ONLINE_ONLY.strategy, SEED)


def _run_of(phase: VirtualPhase, slo: TokenSlo) -> Run:
    outcome, samples = phase.outcome(), LatencySamples.of(phase.records)
    online = outcome.online or online_report([], 0.0, phase.now_s)
    executors = [each.replica.totals for each in phase.system.executors.values()]
    bounds = {"ttft": f"ttft_p50<={slo.ttft_ms:g}ms", "tpot": f"tpot_p50<={slo.tpot_ms:g}ms"}
    attained = {name: parse_slo(expr).judge(online, samples, None).attainment or 0.0 for name, expr in bounds.items()}
    return Run(online, outcome.offline, executors, attained, phase.now_s)
