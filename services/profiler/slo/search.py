"""The search for the largest value of a knob that keeps every SLO (HyGen section 4.2), by what test runs measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.errors import WorkloadError
from loadgen.report.metrics import LatencySamples
from loadgen.report.outcome import PhaseOutcome
from loadgen.report.report import OfflineReport, OnlineReport
from loadgen.report.slo import Slo
from shared.protocol.profiling.slo_profile import (
    ExecutorFacts,
    Knob,
    SloProfileRecord,
    SloVerdict,
    Trial,
    WorkloadFacts,
)

DEFAULT_PRECISION = 0.05
ONLINE_ONLY = 0.0  # the knob's value that lets no offline work in
LOOK_BEYOND = 2  # values above the first that failed, in case that was a blip
EXTRA_RUNS = 6  # beyond those of a bisection, for what is found by looking beyond


@dataclass(frozen=True, slots=True)
class Span:
    """What a knob's values may be: from the first that lets offline work in to the first that holds none back."""

    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """One test run. It does not depend on any SLO, so that any set of SLOs may judge it. ``samples``: of its online
    latencies, where some of its requests failed: without them such a run keeps no SLO."""

    online: OnlineReport
    offline: OfflineReport | None  # None where there was no offline work
    samples: LatencySamples | None = None

    @classmethod
    def of(cls, phase: PhaseOutcome) -> TrialOutcome:
        """What a phase with online requests measured."""
        assert phase.online is not None
        samples = LatencySamples.of(phase.records) if phase.online.errors else None
        return cls(phase.online, phase.offline, samples)

    def judge(self, value: float, slos: Sequence[Slo], online_only: TrialOutcome) -> Trial:
        """``value``: the knob's; ``online_only``: the run without offline work, perhaps this one, to compare with.
        Failed requests are infinitely late, as in a replay's report, and no more may fail than without offline work."""
        verdicts = [self._verdict(slo, online_only.online) for slo in slos]
        offline = self.offline
        return Trial(
            value=value,
            verdicts=verdicts,
            met=all(verdict.met for verdict in verdicts) and self.online.errors <= online_only.online.errors,
            online_completed=self.online.completed,
            online_errors=self.online.errors,
            offline_requests_per_s=offline.requests_per_s if offline else 0.0,
            offline_tokens_per_s=(offline.total_tokens_per_s if offline else None) or 0.0,
            offline_output_tokens_per_s=(offline.output_tokens_per_s if offline else None) or 0.0,
            backlog_ran_out=offline.exhausted if offline else False,
        )

    def _verdict(self, slo: Slo, online_only: OnlineReport) -> SloVerdict:
        bound_ms, value_ms = slo.bound_ms(online_only), slo.late_value_ms(self.online, self.samples)
        known_ms = None if value_ms == math.inf else value_ms
        return SloVerdict(slo.expr, bound_ms, known_ms, slo.is_met(value_ms, bound_ms))


def why_missed(trial: Trial) -> str:
    """Which SLOs a run did not keep, and the best that can be promised under its value; how many requests failed, where
    that is why."""
    missed = [_shown(verdict) for verdict in trial.verdicts if not verdict.met]
    num_requests = trial.online_completed + trial.online_errors
    failed = [f"{trial.online_errors} of {num_requests} online requests failed"] if trial.online_errors else []
    return ", ".join(missed + failed)


def _shown(verdict: SloVerdict) -> str:
    best = "no figure" if verdict.value_ms is None else f"at best {verdict.value_ms:.4g} ms"
    return f"{verdict.expr} ({best})"


class SloSearch:
    """It says what to run and is told what came of it, so that runs may be simulated or live, awaited or shared.

    First ``next_value`` is 0, the run without offline work: the baseline of relative SLOs, and the best that can be
    promised. Where that keeps the SLOs, ``open`` gives the span; its largest value is run next and ends the search
    if it keeps them. Then the span is bisected. Latencies need not grow with the knob all the way: the answer is
    always a value whose own run kept the SLOs, and values just above the first that failed are tried too. It takes at
    most 1 + log2(values in the span) + ``EXTRA_RUNS`` runs, rounded up.
    """

    def __init__(self, slos: Sequence[Slo], knob: Knob, precision: float = DEFAULT_PRECISION) -> None:
        """``precision``: of the Grid. Raises ValueError for one that cannot be, or without SLOs."""
        if not slos:
            raise ValueError("a search needs at least one SLO to keep")
        self.knob = knob
        self.trials: list[Trial] = []  # in the order in which they ran
        self._slos = slos
        self._grid = Grid(precision)
        self._online_only: TrialOutcome | None = None
        self._kept: dict[int, bool] = {}  # by index in the grid
        self._first = self._last = 0  # indices of the span
        self._runs_left = 0

    @property
    def reachable(self) -> bool:
        """The run without offline work kept the SLOs."""
        return bool(self.trials) and self.trials[0].met

    @property
    def value(self) -> float | None:
        """The largest value that kept the SLOs so far; None where none did."""
        index = self._largest_kept()
        return None if index is None else self._grid.value(index)

    @property
    def best(self) -> list[SloVerdict]:
        """Each SLO's figure without offline work."""
        return self.trials[0].verdicts if self.trials else []

    def open(self, span: Span, known: Mapping[float, TrialOutcome] | None = None) -> None:
        """After the run without offline work. ``known``: outcomes of other searches' runs on the same workload, by
        value; the two between which the answer lies by them are taken over."""
        self._first, self._last = self._grid.at_least(span.lowest), self._grid.at_least(span.highest)
        self._runs_left = 1 + (self._last - self._first + 1).bit_length() + EXTRA_RUNS
        judged = {}
        for value, outcome in (known or {}).items():
            index = self._grid.at_least(value) if value > 0 else None
            if index is not None and self._first <= index <= self._last and self._grid.value(index) == value:
                judged[index] = self._judge(value, outcome)
        kept = max((index for index, trial in judged.items() if trial.met), default=self._first - 1)
        failed = min((index for index, trial in judged.items() if not trial.met and index > kept), default=None)
        for index in (failed, kept):
            if index is not None and index in judged:
                self._take(index, judged[index])

    def next_value(self) -> float | None:
        """What to run next; None where the search is over, or waits for ``open``."""
        if self._online_only is None:
            return ONLINE_ONLY
        index = self._next_index() if self.reachable and self._runs_left > 0 else None
        return None if index is None else self._grid.value(index)

    def tell(self, value: float, outcome: TrialOutcome) -> None:
        """The outcome of ``next_value``. Raises WorkloadError where online requests have nothing that an SLO is of:
        whether it can be kept such a workload does not say."""
        if self._online_only is None:
            self._require_figures(outcome.online)
            self._online_only = outcome
            self.trials.append(self._judge(value, outcome))
        else:
            self._runs_left -= 1
            self._take(self._grid.at_least(value), self._judge(value, outcome))

    def record(
        self,
        profile_key: str,
        workload: WorkloadFacts,
        runs_on: str,
        profiled_at_s: float,
        model_revision: int = 0,
        why: str = "",
        executor: ExecutorFacts | None = None,
    ) -> SloProfileRecord:
        """What was found, or is known so far."""
        found = (self.knob, self.value, self.reachable, self.best, list(self.trials))
        exprs = [slo.expr for slo in self._slos]
        run = (workload, runs_on, profiled_at_s, model_revision, why)
        return SloProfileRecord(profile_key, exprs, *found, *run, executor=executor or {})

    def _require_figures(self, online: OnlineReport) -> None:
        lacking = [slo.expr for slo in self._slos if online.completed and slo.value_ms(online) is None]
        if lacking:
            raise WorkloadError(
                f"the online requests have no figure for {', '.join(lacking)}: an answer of one token has no time "
                "between tokens"
            )

    def _judge(self, value: float, outcome: TrialOutcome) -> Trial:
        return outcome.judge(value, self._slos, self._online_only or outcome)

    def _take(self, index: int, trial: Trial) -> None:
        self._kept[index] = trial.met
        self.trials.append(trial)

    def _largest_kept(self) -> int | None:
        return max((index for index, kept in self._kept.items() if kept), default=None)

    def _next_index(self) -> int | None:
        if not self._kept:
            return self._last
        largest = self._largest_kept()
        low = self._first - 1 if largest is None else largest
        high = min((index for index, kept in self._kept.items() if not kept and index > low), default=self._last + 1)
        if high - low > 1:
            return self._last if high > self._last else (low + high) // 2
        beyond = range(high + 1, min(high + LOOK_BEYOND, self._last) + 1)
        return next((index for index in beyond if index not in self._kept), None)


class Grid:
    """Powers of 1 + ``precision``, to five digits: each value is larger than the one before by that share.

    It has no bounds of its own, so that searches over different ranges try the same values, and can share their runs.
    Raises ValueError for a precision outside [0.001, 1].
    """

    def __init__(self, precision: float) -> None:
        if not 0.001 <= precision <= 1.0:
            raise ValueError(f"the precision of a search must be from 0.001 to 1, not {precision:g}")
        self._step = math.log1p(precision)

    def value(self, index: int) -> float:
        return float(f"{math.exp(index * self._step):.5g}")

    def at_least(self, value: float) -> int:
        """The index of the smallest value that is not below ``value``, which is positive."""
        index = math.floor(math.log(value) / self._step) - 1
        while self.value(index) < value:
            index += 1
        return index
