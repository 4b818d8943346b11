"""What a run was like while it went on, looked at every so many seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadgen.client.records import RequestRecord
from loadgen.errors import WorkloadError
from loadgen.report.metrics import LatencySamples
from services.profiler.simulation.virtual_phase import VirtualPhase
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.request import Kind

ONLINE, OFFLINE = Kind.ONLINE, Kind.OFFLINE


@dataclass(frozen=True, slots=True)
class Moment:
    """Of the one executor. Requests: those that run; counts: since the start, ``offline_tokens`` being prompts and
    outputs of offline requests that have ended."""

    time_s: float
    online_running: int
    online_waiting: int
    offline_running: int
    owners: BlockOwners
    prompt_tokens: int
    cached_tokens: int
    offline_tokens: int
    preemptions: int


@dataclass(slots=True)
class Recording:
    """``interval_s``: from one moment to the next, at least; the last is when the backlog is done, if ever.
    ``records``: the online requests, once the run has ended."""

    duration_s: float
    interval_s: float = 1.0
    moments: list[Moment] = field(default_factory=list)
    records: Sequence[RequestRecord] = ()
    _is_over: bool = field(init=False, default=False)  # the backlog is done

    def on_change(self, phase: VirtualPhase) -> None:
        """After each step within the window."""
        now_s = phase.now_s
        if self._is_over or now_s > self.duration_s:
            return
        self._is_over = 0 < phase.backlog_size == phase.num_offline_finished
        if self._is_over or not self.moments or now_s >= self.moments[-1].time_s + self.interval_s:
            self.moments.append(moment_of(phase))

    def after(self, start_s: float) -> Recording:
        """Without what was before: the warm-up. Raises WorkloadError where less than two moments are left."""
        moments = [moment for moment in self.moments if moment.time_s >= start_s]
        if len(moments) < 2:
            raise WorkloadError(f"nothing is left of a run of {self.duration_s:g} s after a warm-up of {start_s:g} s")
        records = [record for record in self.records if start_s <= record.due_s < self.duration_s]
        return Recording(self.duration_s, self.interval_s, moments, records)

    def gained(self, count: Callable[[Moment], int]) -> int:
        """From the first moment to the last."""
        return count(self.moments[-1]) - count(self.moments[0])

    def per_s(self, count: Callable[[Moment], int]) -> float:
        return self.gained(count) / self.length_s

    @property
    def length_s(self) -> float:
        """From the first moment to the last."""
        return self.moments[-1].time_s - self.moments[0].time_s

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens that were let in, those that came from the prefix cache."""
        cached, computed = self.gained(lambda each: each.cached_tokens), self.gained(lambda each: each.prompt_tokens)
        return cached / max(1, cached + computed)

    def parts(self, part_s: float) -> list[Recording]:
        """One after another, each at least so long, the last moment of one being the first of the next."""
        cuts = [self.moments[0]]
        for moment in self.moments:
            if moment.time_s >= cuts[-1].time_s + part_s:
                cuts.append(moment)
        return [Recording(self.duration_s, self.interval_s, [before, after]) for before, after in pairwise(cuts)]

    def attained(self, slo: TokenSlo) -> float:
        """The share of online requests whose first token and whose mean time between tokens are both in time."""
        return sum(_is_within(record, slo) for record in self.records) / max(1, len(self.records))


def moment_of(phase: VirtualPhase) -> Moment:
    """As it is now."""
    replica = phase.executor.replica
    table, totals = replica.table, replica.totals
    return Moment(
        phase.now_s,
        len(table.running(ONLINE)),
        len(table.waiting(ONLINE)),
        len(table.running(OFFLINE)),
        replica.pool.owners(),
        totals.prompt_tokens,
        totals.cached_tokens,
        phase.num_offline_tokens,
        totals.preemptions,
    )


def _is_within(record: RequestRecord, slo: TokenSlo) -> bool:
    samples = LatencySamples.of([record])
    ttft_ms, tpot_ms = samples.ttft_ms or [float("inf")], samples.tpot_ms or [0.0]
    return ttft_ms[0] <= slo.ttft_ms and tpot_ms[0] <= slo.tpot_ms
