"""The correction of a profiled budget by what online users get."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.report.slo import Slo
from shared.protocol.profiling.online import QUANTILES, OnlineLatencies

WINDOW_S = 5.0  # the least between two corrections
SETTLE_S = 2.0  # after a correction, before what users get is its doing
LONGEST_WAIT_S = 60.0  # for samples, before a window counts as quiet without them
LONGEST_WINDOW_S = 600.0
ENOUGH_SAMPLES = {"mean": 50, "p50": 50, "p90": 100, "p99": 200}
SMALLEST_CUT, LARGEST_CUT = 0.95, 0.5  # of the budget, in one correction
COMFORT = 0.95  # of a bound: above it nothing is loosened
ROOM = 0.85  # of every bound: below it the budget may exceed the profiled one
QUIET_WINDOWS = 3  # before each step up
STEP = 0.05  # up, of the profiled budget
BEYOND_PROFILE = 1.5
BACK_OFF = 0.95  # of a budget that broke an SLO: as much as is tried again within
MEMORY_S = 600.0


@dataclass(slots=True)
class Target:
    """An SLO and its bound. A relative one multiplies the figure without offline work, ``alone_ms`` by its profile;
    where the machine was last measured to take longer than that, ``measured_alone_ms``: no budget would help."""

    slo: Slo
    alone_ms: float = 0.0
    measured_alone_ms: float = 0.0

    @property
    def bound_ms(self) -> float:
        return self.slo.limit * max(self.alone_ms, self.measured_alone_ms) if self.slo.relative else self.slo.limit


@dataclass(slots=True)
class _Window:
    start_s: float
    checked_s: float  # counted as quiet up to here
    latencies: OnlineLatencies = field(default_factory=OnlineLatencies)
    offline_ran: bool = False


class BudgetFeedback:
    """Tightens fast and loosens slowly, by windows of measured latencies; the time is the caller's.

    A window that breaks an SLO while offline work runs cuts the budget in proportion to the excess. Three quiet windows
    in a row add a twentieth of the profiled budget: up to the profiled one, or to half more where every SLO is measured
    to have room. For ten minutes it stays below a budget that broke an SLO, so that it does not swing. From
    ``floor_ms``, which lets no offline work in, it comes back in the same steps.
    """

    def __init__(
        self,
        profiled_ms: float,
        floor_ms: float,
        targets: Sequence[Target],
        now_s: float,
        share: float = 1.0,
        largest_share: float = BEYOND_PROFILE,
    ) -> None:
        """``share``: of the profiled budget, to begin with; ``largest_share``: where there is room."""
        self.budget_ms = max(min(floor_ms, profiled_ms), share * profiled_ms)
        self.is_broken_alone = False  # an SLO was last seen broken without offline work
        self._profiled_ms = profiled_ms
        self._largest_share = largest_share
        self._floor_ms = min(floor_ms, profiled_ms)
        self._targets = targets
        self._window = _Window(now_s + SETTLE_S, now_s + SETTLE_S)
        self._num_quiet = 0
        self._broke_ms = math.inf
        self._broke_s = now_s

    @property
    def share(self) -> float:
        """Of the profiled budget, as it is now."""
        return self.budget_ms / self._profiled_ms

    def observe(self, now_s: float, latencies: OnlineLatencies, offline_ran: bool) -> bool:
        """What users got since the call before, perhaps nothing. True where the budget is another from now on."""
        window = self._window
        if now_s < window.start_s:
            return False
        window.latencies.merge(latencies)
        window.offline_ran |= offline_ran
        age_s = now_s - window.start_s
        if age_s < WINDOW_S - SETTLE_S:
            return False
        cut = min((self._cut(target, age_s) for target in self._targets), default=1.0)
        if cut < 1.0:
            return self._on_broken(now_s, cut)
        wait_s = WINDOW_S if all(map(self._is_measured, self._targets)) else LONGEST_WAIT_S
        return now_s - window.checked_s >= wait_s and self._on_quiet(now_s)

    def _on_broken(self, now_s: float, cut: float) -> bool:
        self._num_quiet, self.is_broken_alone, is_other = 0, not self._window.offline_ran, False
        if self.is_broken_alone:
            self._learn_alone()
        else:
            self._broke_ms, self._broke_s = self.budget_ms, now_s
            is_other = self._change(now_s, max(self._floor_ms, self.budget_ms * cut))
        if not is_other:
            self._renew(now_s)
        return is_other

    def _on_quiet(self, now_s: float) -> bool:
        self.is_broken_alone = False
        self._num_quiet = self._num_quiet + 1 if self._all_within(COMFORT) else 0
        is_measured = all(map(self._is_measured, self._targets))
        has_room = is_measured and self._window.offline_ran and self._all_within(ROOM)
        self._learn_alone()
        self._window.checked_s = now_s
        is_in_doubt = not self._all_within(1.0)
        if (is_measured and not is_in_doubt) or now_s - self._window.start_s >= LONGEST_WINDOW_S:
            self._renew(now_s)
        if self._num_quiet < QUIET_WINDOWS:
            return False
        self._num_quiet = 0
        highest_ms = self._profiled_ms * (self._largest_share if has_room else 1.0)
        if now_s - self._broke_s < MEMORY_S:
            highest_ms = min(highest_ms, BACK_OFF * self._broke_ms)
        return self._change(now_s, min(max(highest_ms, self.budget_ms), self.budget_ms + STEP * self._profiled_ms))

    def _change(self, now_s: float, budget_ms: float) -> bool:
        is_other = budget_ms != self.budget_ms
        if is_other:
            self.budget_ms = budget_ms
            self._renew(now_s + SETTLE_S)
        return is_other

    def _renew(self, start_s: float) -> None:
        self._window = _Window(start_s, start_s)

    def _cut(self, target: Target, age_s: float) -> float:
        """What to multiply the budget with; 1 where the SLO is kept, or the samples do not tell yet."""
        value_ms = self._window.latencies.value_ms(target.slo)
        if value_ms is None or value_ms <= target.bound_ms or not self._is_broken(target, age_s):
            return 1.0
        return min(SMALLEST_CUT, max(LARGEST_CUT, target.bound_ms / value_ms))

    def _is_broken(self, target: Target, age_s: float) -> bool:
        """A quantile is, as soon as more samples are above the bound than chance may put there, by one deviation."""
        histogram, quantile = self._window.latencies.histogram(target.slo), QUANTILES.get(target.slo.statistic)
        if self._is_measured(target) and (quantile is None or age_s >= LONGEST_WAIT_S):
            return True
        if quantile is None:
            return False
        expected = (1 - quantile) * max(histogram.num_samples, ENOUGH_SAMPLES[target.slo.statistic])
        return histogram.num_above(target.bound_ms) > expected + math.sqrt(expected)

    def _is_measured(self, target: Target) -> bool:
        return self._window.latencies.histogram(target.slo).num_samples >= ENOUGH_SAMPLES[target.slo.statistic]

    def _all_within(self, share: float) -> bool:
        """No figure of the window is above this share of its bound."""
        values = ((self._window.latencies.value_ms(target.slo), target.bound_ms) for target in self._targets)
        return all(value_ms is None or value_ms <= share * bound_ms for value_ms, bound_ms in values)

    def _learn_alone(self) -> None:
        for target in self._targets:
            value_ms = self._window.latencies.value_ms(target.slo)
            if not self._window.offline_ran and value_ms is not None and self._is_measured(target):
                target.measured_alone_ms = value_ms
