"""Outcomes of made-up test runs."""

from collections.abc import Callable

from loadgen.report.metrics import LatencySamples
from loadgen.report.report import OfflineReport, OnlineReport, Summary
from services.profiler.slo.search import ONLINE_ONLY, Span, TrialOutcome
from shared.protocol.profiling.slo_profile import Knob


def make_outcome(
    tbt_ms: float, ttft_ms: float = 100.0, errors: int = 0, tokens_per_s: float = 0.0, num_requests: int = 100
) -> TrialOutcome:
    """Every statistic of a metric is the same figure."""

    def flat(value: float) -> Summary:
        return Summary(value, value, value, value)

    tbt, ttft = flat(tbt_ms), flat(ttft_ms)
    num_done = num_requests - errors
    online = OnlineReport(num_requests, num_done, errors, 0, ttft, tbt, tbt, tbt, None, 1.0, 10.0, 10.0)
    samples = LatencySamples([ttft_ms] * num_done, *[[tbt_ms] * num_done for _ in range(3)])
    offline = OfflineReport("batch", 1000, 10, 0, 100.0, False, 0.1, tokens_per_s / 2, tokens_per_s)
    return TrialOutcome(online, offline if tokens_per_s else None, samples)


class FunctionTrials:
    """Trials whose outcome is a function of the value; ``ran`` says which ran, in order."""

    def __init__(self, outcome: Callable[[float], TrialOutcome], span: Span, knob: Knob = Knob.BUDGET_MS) -> None:
        self.knob = knob
        self.outcomes: dict[float, TrialOutcome] = {}
        self.ran: list[float] = []
        self._outcome = outcome
        self._span = span

    def run(self, value: float) -> TrialOutcome:
        if value not in self.outcomes:
            self.ran.append(value)
            self.outcomes[value] = self._outcome(value)
        return self.outcomes[value]

    def span(self) -> Span:
        assert self.ran[0] == ONLINE_ONLY
        return self._span
