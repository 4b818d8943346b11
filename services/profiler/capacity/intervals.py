"""A window in parts: what online and offline requests got done in each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadgen.client.records import RequestRecord
from services.profiler.capacity.record import Interval
from services.profiler.simulation.virtual_phase import VirtualPhase

NUM_INTERVALS = 60


@dataclass(slots=True)
class IntervalCounter:
    """``look`` after each step, then ``intervals``. Requests count where they end."""

    window_s: float
    num_intervals: int = NUM_INTERVALS
    _offline_tokens: list[int] = field(init=False, default_factory=list)  # until the end of each interval

    @property
    def _length_s(self) -> float:
        return self.window_s / self.num_intervals

    def look(self, phase: VirtualPhase) -> None:
        """Nothing within an interval; at its end it is counted with the step that ends next."""
        while len(self._offline_tokens) < min(self.num_intervals, int(phase.now_s / self._length_s)):
            self._offline_tokens.append(phase.num_offline_tokens)

    def intervals(self, phase: VirtualPhase) -> list[Interval]:
        """Of a phase that has ended."""
        length_s = self._length_s
        online = _online_tokens(phase.records, length_s, self.num_intervals)
        missing = self.num_intervals - len(self._offline_tokens)
        offline = [0, *self._offline_tokens, *[phase.num_offline_tokens] * missing]
        return [
            Interval(index * length_s, length_s, online[index] / length_s, (after - before) / length_s)
            for index, (before, after) in enumerate(pairwise(offline))
        ]


def _online_tokens(records: Sequence[RequestRecord], length_s: float, num_intervals: int) -> list[int]:
    tokens = [0] * num_intervals
    for record in records:
        if record.ok and record.finished_s is not None and record.finished_s < length_s * num_intervals:
            tokens[int(record.finished_s / length_s)] += (record.prompt_tokens or 0) + record.num_output_tokens
    return tokens
