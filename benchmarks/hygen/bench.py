"""One workload on one machine: its runs and searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.hygen.settings import Metric, Setting
from loadgen.progress import RenamedProgress, ReplayProgress
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.strategy import Strategy
from services.profiler.simulation.virtual_executor import ExecutorSetup
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.outcome import TrialOutcome
from services.profiler.slo.simulated import SimulatedTrials
from services.profiler.slo.trials import search_slos
from shared.latency.model import LatencyModel
from shared.protocol.slo_profile import Knob
from shared.scheduling.presets import preset_named

SEED = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Online requests within ``duration_s`` seconds, and a backlog that does not run out in that time."""

    requests: Sequence[TraceRequest]
    prompts: Sequence[OfflinePrompt]
    duration_s: float


@dataclass(frozen=True, slots=True)
class System:
    """What serves: a preset; another offline ``order`` than its own; a ``planner`` that ``Bench.planners`` names,
    else plans are made with what steps take."""

    preset: str
    order: str = ""
    planner: str = ""


HYGEN, STAR, SARATHI, ONLINE_ONLY = map(System, ("hygen", "hygen-star", "sarathi++", "online-only"))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run came to. Throughput is of requests that finished within the window, prompt and output tokens
    together."""

    outcome: TrialOutcome

    def latency_ms(self, metric: Metric) -> float:
        """Raises ValueError where no request was answered."""
        figure = parse_slo(metric.slo(0.0)).value_ms(self.outcome.online)
        if figure is None:
            raise ValueError(f"no {metric.label}: no online request was answered")
        return figure

    @property
    def online_tokens_per_s(self) -> float:
        online = self.outcome.online
        return (online.input_tokens_per_s or 0.0) + online.output_tokens_per_s

    @property
    def offline_tokens_per_s(self) -> float:
        offline = self.outcome.offline
        return 0.0 if offline is None else offline.total_tokens_per_s or 0.0

    @property
    def offline_requests_per_s(self) -> float:
        return 0.0 if self.outcome.offline is None else self.outcome.offline.requests_per_s

    @property
    def total_tokens_per_s(self) -> float:
        return self.online_tokens_per_s + self.offline_tokens_per_s


@dataclass(frozen=True, slots=True)
class Found:
    """The largest value of a system's knob that kept the SLOs, None where none did, and that value's run: without
    offline work where there is no value. ``unbounded``: nothing had to be held back."""

    knob: Knob
    value: float | None
    measured: Measured
    unbounded: bool

    @property
    def text(self) -> str:
        """For tables: milliseconds of budget, or requests/s."""
        if self.value is None:
            return "0"
        return "any" if self.unbounded else f"{self.value:.1f}" if self.knob is Knob.BUDGET_MS else f"{self.value:.3f}"


class Bench:
    """Runs systems on one load; what was run before is not run again."""

    def __init__(self, setting: Setting, load: Load, precision: float, progress: ReplayProgress) -> None:
        """``precision``: between two values that a search tries."""
        self.setting = setting
        self.load = load
        self.planners: dict[str, LatencyModel] = {}
        self._precision = precision
        self._progress = progress
        scaling = Scaling(duration_s=load.duration_s, seed=SEED)
        plan = ReplayPlan(load.requests, load.prompts, scaling)
        self._workload = SimulatedWorkload(plan, self._setup(ONLINE_ONLY))
        self._trials: dict[System, SimulatedTrials] = {}
        self._without_knob: dict[System, Measured] = {}

    @property
    def online_only(self) -> Measured:
        return self.run(ONLINE_ONLY)

    def run(self, system: System, value: float | None = None) -> Measured:
        """``value``: of the preset's knob, None where it has none."""
        if value is not None:
            return Measured(self._trials_of(system).run(value))
        if system not in self._without_knob:
            self._progress.phase(f"{self.setting.name}, {system.preset}", len(self.load.requests), 0)
            phase = self.phase(system, on_change=lambda phase: tell(phase, self._progress))
            phase.run()
            self._without_knob[system] = Measured(TrialOutcome.of(phase.outcome()))
        return self._without_knob[system]

    def largest(self, system: System, slos: Sequence[str]) -> Found:
        """What the profiler finds for these SLOs (HyGen section 4.2; for HyGen*, section 5.1)."""
        trials = self._trials_of(system)
        search = search_slos(trials, [parse_slo(expr) for expr in slos], self._precision)
        if search.value is None:
            return Found(trials.knob, None, self.online_only, unbounded=False)
        unbounded = search.value >= trials.span().highest
        return Found(trials.knob, search.value, Measured(trials.outcomes[search.value]), unbounded)

    def phase(
        self,
        system: System,
        value: float | None = None,
        on_change: Callable[[VirtualPhase], None] | None = None,
        latency: LatencyModel | None = None,
    ) -> VirtualPhase:
        """A run of its own, not yet begun. ``latency``: how long steps take, else the setting's own."""
        setup, strategy = self._setup(system, value), self._strategy(system, value)
        setup = replace(setup, latency=latency or setup.latency)
        offline = strategy.preset.serves_offline
        return self._workload.phase(setup, strategy, self.load.duration_s, True, offline, on_change)

    def _trials_of(self, system: System) -> SimulatedTrials:
        if system not in self._trials:
            named = RenamedProgress(self._progress, f"{self.setting.name}, {system.preset}: {{}}".format)
            setup = self._setup(system, value=1.0)  # replaced in each run
            strategy = self._strategy(system, value=1.0)
            self._trials[system] = SimulatedTrials(self._workload, setup, strategy, self.load.duration_s, named)
        return self._trials[system]

    def _strategy(self, system: System, value: float | None) -> Strategy:
        preset = preset_named(system.preset)
        return Strategy(
            replace(preset, offline_order=system.order or preset.offline_order),
            budget_ms=value if preset.uses_latency_budget else None,
            offline_qps=value if preset.uses_offline_rate else None,
        )

    def _setup(self, system: System, value: float | None = None) -> ExecutorSetup:
        setup = self.setting.machine.setup(self._strategy(system, value), SEED)
        return replace(setup, planner=self.planners[system.planner]) if system.planner else setup
