"""Running a search on whatever runs a workload."""

from collections.abc import Sequence
from typing import Protocol

from loadgen.report.slo import Slo
from services.profiler.slo.outcome import TrialOutcome
from services.profiler.slo.search import DEFAULT_PRECISION, ONLINE_ONLY, SloSearch, Span
from shared.protocol.slo_profile import Knob
from shared.scheduling.strategy import Strategy


class Trials(Protocol):
    """Test runs of one workload under one preset."""

    @property
    def knob(self) -> Knob: ...

    @property
    def outcomes(self) -> dict[float, TrialOutcome]:
        """What has run so far, by the knob's value."""

    def run(self, value: float) -> TrialOutcome:
        """0 is without offline work."""

    def span(self) -> Span:
        """Which values make a difference."""


def run_search(search: SloSearch, trials: Trials) -> None:
    """To the end. Where it is interrupted, ``search`` holds what is known so far."""
    search.tell(ONLINE_ONLY, trials.run(ONLINE_ONLY))
    if search.reachable:
        search.open(trials.span(), trials.outcomes)
    while (value := search.next_value()) is not None:
        search.tell(value, trials.run(value))


def search_slos(trials: Trials, slos: Sequence[Slo], precision: float = DEFAULT_PRECISION) -> SloSearch:
    """A whole search. Further ones over the same ``trials`` repeat no run. Raises ValueError as SloSearch does."""
    search = SloSearch(slos, trials.knob, precision)
    run_search(search, trials)
    return search


def knob_of(strategy: Strategy) -> Knob:
    """Raises ValueError for a strategy without one."""
    if strategy.uses_latency_budget:
        return Knob.BUDGET_MS
    if strategy.offline_rate == "fixed":
        return Knob.OFFLINE_QPS
    raise ValueError(f"preset {strategy.preset} has neither a latency budget nor an offline rate to search for")
