"""Test runs in the simulator, and searches by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from loadgen.errors import WorkloadError
from loadgen.progress import ReplayProgress
from loadgen.report.slo import Slo
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.search import DEFAULT_PRECISION, ONLINE_ONLY, SloSearch, Span, TrialOutcome
from shared.latency.model import cheapest_step_ms
from shared.protocol.profiling.slo_profile import Knob
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup

ROUNDING = 1 + 1e-9  # sums of the same costs in another order


@dataclass(slots=True)
class SimulatedTrials:
    """Each run starts with an empty executor, the whole backlog and the same random numbers, so that its outcome does
    not depend on the runs before; outcomes are kept, by the knob's value, and run once. ``setup``: in each run its
    strategy has another knob.

    Raises ValueError for a strategy without a knob, WorkloadError for a workload that lacks online or offline requests.
    """

    workload: SimulatedWorkload
    setup: ExecutorSetup
    duration_s: float
    progress: ReplayProgress
    knob: Knob = field(init=False)
    outcomes: dict[float, TrialOutcome] = field(init=False, default_factory=dict)
    _span: Span | None = field(init=False, default=None)
    _unbounded: TrialOutcome | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not self.workload.requests or not len(self.workload.backlog):
            raise WorkloadError("a search is about online requests beside offline ones: give --online and --offline")
        self.knob = knob_of(self.setup.strategy)

    def run(self, value: float) -> TrialOutcome:
        """From the end of the span on it is the run that holds nothing back."""
        if value not in self.outcomes:
            reaches_all = self._span is not None and value >= self._span.highest
            self.outcomes[value] = (self._unbounded if reaches_all else None) or self._run(value)[0]
        return self.outcomes[value]

    def span(self) -> Span:
        """By a run that holds nothing back, once. A budget matters from the cheapest step on, up to the longest that
        run planned; a rate from one request in the window on, up to a whole batch in the time of the cheapest step:
        from there on nobody waits for it. The mean rate of that run is no such end: it evens out when requests enter.
        """
        if self._span is None:
            self._unbounded, phase = self._run(math.inf)
            self._span = self._budget_span(phase) if self.knob is Knob.BUDGET_MS else self._rate_span()
        return self._span

    def _budget_span(self, phase: VirtualPhase) -> Span:
        lowest_ms = cheapest_step_ms(self.setup.planner)
        longest_ms = max(executor.longest_plan_ms for executor in phase.system.executors.values())
        return Span(lowest_ms, max(lowest_ms, longest_ms * ROUNDING))

    def _rate_span(self) -> Span:
        lowest_qps, shortest_s = 1 / self.duration_s, cheapest_step_ms(self.setup.latency) / 1e3
        return Span(lowest_qps, max(lowest_qps, self.setup.limits.max_num_seqs / shortest_s))

    def _run(self, value: float) -> tuple[TrialOutcome, VirtualPhase]:
        has_offline = value != ONLINE_ONLY
        self.progress.phase(self._name(value), len(self.workload.requests), has_offline * len(self.workload.backlog))
        phase = self.workload.phase(
            replace(self.setup, strategy=with_knob(self.setup.strategy, self.knob, value)),
            self.duration_s,
            online=True,
            offline=has_offline,
            on_change=lambda phase: tell(phase, self.progress),
        )
        phase.run()
        return TrialOutcome.of(phase.outcome()), phase

    def _name(self, value: float) -> str:
        if value == ONLINE_ONLY:
            return "online only"
        if math.isinf(value):
            return "nothing held back"
        return f"budget {value:g} ms" if self.knob is Knob.BUDGET_MS else f"{value:g} offline requests/s"


def run_search(search: SloSearch, trials: SimulatedTrials) -> None:
    """To the end. Where it is interrupted, ``search`` holds what is known so far."""
    search.tell(ONLINE_ONLY, trials.run(ONLINE_ONLY))
    if search.reachable:
        search.open(trials.span(), trials.outcomes)
    while (value := search.next_value()) is not None:
        search.tell(value, trials.run(value))


def search_slos(trials: SimulatedTrials, slos: Sequence[Slo], precision: float = DEFAULT_PRECISION) -> SloSearch:
    """A whole search. Further ones over the same ``trials`` repeat no run. Raises ValueError as SloSearch does."""
    search = SloSearch(slos, trials.knob, precision)
    run_search(search, trials)
    return search


def with_knob(strategy: Strategy, knob: Knob, value: float) -> Strategy:
    """With this value of it; infinity holds nothing back."""
    if knob is Knob.BUDGET_MS:
        return msgspec.structs.replace(strategy, latency_budget="fixed", budget_ms=value)
    return msgspec.structs.replace(strategy, offline_qps=math.inf if value == ONLINE_ONLY else value)


def knob_of(strategy: Strategy) -> Knob:
    """Raises ValueError for a strategy without one."""
    if strategy.uses_latency_budget:
        return Knob.BUDGET_MS
    if strategy.offline_rate == "fixed":
        return Knob.OFFLINE_QPS
    raise ValueError(f"preset {strategy.preset} has neither a latency budget nor an offline rate to search for")
