"""What a run came to, which batches it was made of, and what a search found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from loadgen.report.report import OfflineReport, OnlineReport
from loadgen.report.slo import parse_slo
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.executors import ExecutorCounters
from shared.protocol.profiling.slo_profile import Knob


@dataclass(frozen=True, slots=True)
class Measured:
    """Of online requests that arrived, and of offline ones that ended, within the window. Tokens: prompt and output."""

    online: OnlineReport
    offline: OfflineReport | None

    def latency_ms(self, metric: str) -> float:
        """``metric``: as in SLO expressions. Raises ValueError where no request was answered."""
        figure = parse_slo(f"{metric}<=1ms").value_ms(self.online)
        if figure is None:
            raise ValueError(f"no {metric}: no online request was answered")
        return figure

    def latency_or_zero_ms(self, metric: str) -> float:
        """0 where no request was answered."""
        return parse_slo(f"{metric}<=1ms").value_ms(self.online) or 0.0

    @property
    def offline_tokens_per_s(self) -> float:
        return 0.0 if self.offline is None else self.offline.total_tokens_per_s or 0.0

    @property
    def offline_requests_per_s(self) -> float:
        return 0.0 if self.offline is None else self.offline.requests_per_s

    @property
    def online_tokens_per_s(self) -> float:
        return (self.online.input_tokens_per_s or 0.0) + self.online.output_tokens_per_s

    @property
    def total_tokens_per_s(self) -> float:
        return self.online_tokens_per_s + self.offline_tokens_per_s


@dataclass(frozen=True, slots=True)
class Run(Measured):
    """A whole one. ``executors``: what each counted; ``attained``: the share of online requests whose ``ttft`` and mean
    ``tpot`` are within their system's deadlines; ``end_s``: when the last online answer was in."""

    executors: Sequence[ExecutorCounters]
    attained: Mapping[str, float]
    end_s: float

    @property
    def totals(self) -> ExecutorCounters:
        """Of all executors."""
        return ExecutorCounters(*map(sum, zip(*map(msgspec.structs.astuple, self.executors), strict=True)))

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens that were let in, those that came from a prefix cache."""
        totals = self.totals
        return totals.cached_tokens / max(1, totals.cached_tokens + totals.prompt_tokens)


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

    @property
    def text_with_unit(self) -> str:
        unit = "ms" if self.knob is Knob.BUDGET_MS else "requests/s"
        return self.text if self.unbounded or self.value is None else f"{self.text} {unit}"


class Recorder:
    """A latency model that keeps the shapes of the steps that it times."""

    def __init__(self, model: LatencyModel) -> None:
        self.shapes: list[BatchFeatures] = []
        self.decode_cost_ms, self.prefill_cost_ms = model.decode_cost_ms, model.prefill_cost_ms
        self.max_prefill_tokens = model.max_prefill_tokens
        self._predict_ms = model.predict_ms

    def predict_ms(self, features: BatchFeatures) -> float:
        self.shapes.append(features)
        return self._predict_ms(features)
