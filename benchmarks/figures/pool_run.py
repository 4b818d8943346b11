"""What came of a run of two machines, and when it is given up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.client.records import RequestRecord
from loadgen.progress import ReplayProgress
from loadgen.report.metrics import LatencySamples, percentile
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.request import Kind

MOST_BROKEN = 0.03  # of the online requests may miss the SLO (OOCO section 5.2)
PEAK_SHARE = 1 / 6  # of the time
STEPS_PER_LOOK = 200
GIVEN_UP = 1.5  # times as many requests as may miss the SLO have: nothing can be found here any more


@dataclass(frozen=True, slots=True)
class PoolRun:
    """``broken``: share of the online requests that missed the SLO; ``broken_at_worst``: of those that came in the
    worst sixth of the time; ``is_whole``: it was not given up when too many had. ``offline_tokens_per_s``: of prompts
    and outputs whose KV is there at the end, or whose request has ended, and that were not when a quarter of the time
    had passed; ``ended_per_s``: offline requests, in the same time. ``busy_shares``: of the executors, strict ones
    first."""

    broken: float
    broken_at_worst: float
    is_whole: bool
    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    offline_tokens_per_s: float
    ended_per_s: float
    handed_over: int
    preemptions: int
    interrupted: int  # steps
    busy_shares: tuple[float, ...]

    @property
    def keeps_at_worst(self) -> bool:
        return self.is_whole and self.broken_at_worst <= MOST_BROKEN

    @property
    def keeps(self) -> bool:
        return self.is_whole and self.broken <= MOST_BROKEN


@dataclass(slots=True)
class Watch:
    """A run while it goes on. It is given up when it is clear that too many miss the SLO."""

    slo: TokenSlo
    warm_up_s: float
    num_requests: int
    progress: ReplayProgress
    _num_steps: int = 0
    _before: tuple[int, int] | None = None  # offline tokens, and requests that had ended, after the first quarter
    _is_whole: bool = True

    def on_change(self, phase: VirtualPhase) -> None:
        tell(phase, self.progress)
        if self._before is None and phase.now_s >= self.warm_up_s:
            self._before = _offline_done(phase)
        self._num_steps += 1
        if phase.now_s >= phase.duration_s:  # those under way are judged by what they have got
            phase.stop()
        elif self._num_steps % STEPS_PER_LOOK == 0:
            num_broken = sum(misses(each, self.slo, phase.now_s) for each in phase.records)
            if num_broken > GIVEN_UP * MOST_BROKEN * self.num_requests:
                self._is_whole = False
                phase.stop()

    def run(self, phase: VirtualPhase) -> PoolRun:
        """What came of it."""
        records, done, before = phase.records, _offline_done(phase), self._before or (0, 0)
        samples = LatencySamples.of(records)
        totals = [each.replica.totals for each in phase.system.executors.values()]
        counted_s = phase.duration_s - self.warm_up_s
        return PoolRun(
            broken=self._share(records, phase.now_s),
            broken_at_worst=self._worst(phase),
            is_whole=self._is_whole,
            ttft_mean_ms=statistics.fmean(samples.ttft_ms or [math.inf]),
            ttft_p99_ms=percentile(sorted(samples.ttft_ms) or [math.inf], 0.99),
            tpot_p99_ms=percentile(sorted(samples.tpot_ms) or [0.0], 0.99),
            offline_tokens_per_s=(done[0] - before[0]) / counted_s,
            ended_per_s=(done[1] - before[1]) / counted_s,
            handed_over=sum(each.handed_over for each in totals),
            preemptions=sum(each.preemptions for each in totals),
            interrupted=sum(each.steps_interrupted for each in totals),
            busy_shares=tuple(min(1.0, each.busy_s / phase.now_s) for each in totals),
        )

    def _worst(self, phase: VirtualPhase) -> float:
        length_s = PEAK_SHARE * phase.duration_s
        starts_s = [index * phase.duration_s / 60 for index in range(51)]
        parts = ([each for each in phase.records if 0 <= each.due_s - start_s < length_s] for start_s in starts_s)
        return max(self._share(part, phase.now_s) for part in parts)

    def _share(self, records: Sequence[RequestRecord], now_s: float) -> float:
        return sum(misses(each, self.slo, now_s) for each in records) / max(1, len(records))


def _offline_done(phase: VirtualPhase) -> tuple[int, int]:
    """Tokens that are computed, of requests that have ended or go on with them, and how many have ended."""
    tables = (executor.replica.table for executor in phase.system.executors.values())
    running = (request for table in tables for request in table.running(Kind.OFFLINE).values())
    num_tokens = phase.num_offline_tokens + sum(request.num_computed_tokens for request in running)
    return num_tokens, phase.num_offline_finished


def misses(record: RequestRecord, slo: TokenSlo, now_s: float) -> bool:
    """Its first token or its mean time between tokens, as far as it has got."""
    times_s = record.token_times_s
    if not times_s:
        return record.error is not None or (now_s - record.due_s) * 1e3 > slo.ttft_ms
    if (times_s[0] - record.due_s) * 1e3 > slo.ttft_ms:
        return True
    return len(times_s) > 1 and (times_s[-1] - times_s[0]) * 1e3 > (len(times_s) - 1) * slo.tpot_ms
