"""SLOs that are lost before a run has ended: whatever is still to come, their figure will be above the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.client.records import RequestRecord
from loadgen.report.metrics import LatencySamples
from loadgen.report.slo import Slo
from loadgen.workload.traces import TraceRequest

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(slots=True)
class LostSlos:
    """Of a simulated run over ``requests``, or over those from ``first`` on: SLOs that are not relative, and lengths
    that are known. An open request counts with the latencies that it has if its answer ends now, the least that they
    can become; one that has not been sent counts as answered at once."""

    slos: Sequence[Slo]
    requests: Sequence[TraceRequest]
    first: int = 0  # records before it are of other requests
    _tallies: list[_Tally] = field(init=False)
    _open: list[tuple[int, RequestRecord]] = field(init=False, default_factory=list)
    _num_seen: int = field(init=False, default=0)
    _needs_gaps: bool = field(init=False)

    def __post_init__(self) -> None:
        self._tallies = [_Tally(slo, most_samples(slo.metric, self.requests)) for slo in self.slos]
        self._needs_gaps = any(slo.metric == "tbt_ms" for slo in self.slos)

    def find(self, records: Sequence[RequestRecord], now_s: float) -> Slo | None:
        """One that is lost by ``now_s``; ``records``: of the run's requests as they were sent, more at each call."""
        num_sent = min(len(records) - self.first, len(self.requests))
        self._open += [(index, records[self.first + index]) for index in range(self._num_seen, num_sent)]
        self._num_seen = max(self._num_seen, num_sent)
        ended = LatencySamples.of([record for _, record in self._open if record.finished_s is not None])
        self._open = [(index, record) for index, record in self._open if record.finished_s is None]
        least = LatencySamples.of([self._ended_now(index, record, now_s) for index, record in self._open])
        for tally in self._tallies:
            tally.add(ended)
        return next((tally.slo for tally in self._tallies if tally.is_lost(least)), None)

    def _ended_now(self, index: int, record: RequestRecord, now_s: float) -> RequestRecord:
        """Of tokens between the first and the last only gaps between tokens speak."""
        so_far_s = record.token_times_s if self._needs_gaps else record.token_times_s[:1]
        total = max(1, self.requests[index].num_output_tokens)
        return RequestRecord(record.due_s, record.sent_s, [*so_far_s, now_s], now_s, output_tokens=total)


@dataclass(slots=True)
class _Tally:
    """What is certain of one SLO's samples. ``most``: how many of them there can be."""

    slo: Slo
    most: int
    num_beyond: int = 0
    sum_ms: float = 0.0

    def add(self, samples: LatencySamples) -> None:
        """Of requests that have ended."""
        values = getattr(samples, self.slo.metric)
        self.num_beyond += self._beyond(values)
        self.sum_ms += sum(values)

    def is_lost(self, least: LatencySamples) -> bool:
        """``least``: what the open requests' samples are at least."""
        if self.most == 0:
            return False
        values = getattr(least, self.slo.metric)
        share = SHARES.get(self.slo.statistic)
        if share is None:  # a mean
            return not self.slo.is_met((self.sum_ms + sum(values)) / self.most, self.slo.limit)
        # A quantile is at least the sample at its rounded-down place, and fewer samples in all only move it up.
        return self.num_beyond + self._beyond(values) >= self.most - math.floor((self.most - 1) * share)

    def _beyond(self, values: Sequence[float]) -> int:
        return sum(not self.slo.is_met(value, self.slo.limit) for value in values)


def most_samples(metric: str, requests: Sequence[TraceRequest]) -> int:
    """Where every request is answered whole."""
    if metric == "tbt_ms":
        return sum(max(0, request.num_output_tokens - 1) for request in requests)
    if metric == "tpot_ms":
        return sum(request.num_output_tokens > 1 for request in requests)
    return len(requests)
