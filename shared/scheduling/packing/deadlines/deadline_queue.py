"""Online requests by the time that is left to them: lines 3 and 4 of BROS Alg. 1."""

import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.kv.request_cache import RequestCache
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.victims import schedulable
from shared.scheduling.request import Kind, Request


class Timed(NamedTuple):
    """A request, and what is left to it: T_SLO - t_i - (k_i - 1) T_avg."""

    remaining_ms: float
    request: Request


_remaining_ms = attrgetter("remaining_ms")


class DeadlineQueue:
    """First those whose deadline can still be met, then those that are too late; each by remaining time, ties to those
    that run, then by arrival. The paper sorts all together: late requests, which are then most urgent, would keep the
    others waiting until they are late as well.

    Only what has KV or may be in time is sorted. What has never run stands in the order of arrival, which is that of
    its deadlines, and is polled beside the sorted rest (request pulling optimization, BROS section 4.2); what has lost
    its KV and is past its deadline is looked at once somebody of it could enter. One that was on another executor may
    be due at any time, and is sorted with what has KV; but where somebody who came after it is past its deadline, it
    counts as late too.
    """

    def __init__(self, state: StepState) -> None:
        self._pace = state.pace
        waiting = state.table.waiting(Kind.ONLINE)
        lost_kv = list(takewhile(lambda request: request.was_admitted, waiting.values()))
        self._past_lost_kv = [request for request in lost_kv if request.deadline_ms <= self._pace.now_ms]
        hopeful = [request for request in lost_kv if request.deadline_ms > self._pace.now_ms]
        not_past = list(self._not_past(reversed(waiting.values())))
        not_past.reverse()
        resumed = [request for request in not_past if request.num_resumed_tokens is not None]
        pending = [self._timed(request) for request in (*schedulable(state.table, Kind.ONLINE), *hopeful, *resumed)]
        recent = [self._timed(request) for request in not_past if request.num_resumed_tokens is None]
        can_meet = _Alone(state.model, state.limits.max_num_batched_tokens, [*pending, *recent], state.cache)
        self._in_time = sorted(filter(can_meet.in_time, pending), key=_remaining_ms)
        self._late = sorted((timed for timed in pending if not can_meet.in_time(timed)), key=_remaining_ms)
        self._recent_in_time = list(filter(can_meet.in_time, recent))
        self._recent_late = [timed for timed in recent if not can_meet.in_time(timed)]
        num_past = len(waiting) - len(lost_kv) - len(not_past)
        self._past = islice(waiting.values(), len(lost_kv), len(lost_kv) + num_past)
        self.has_late = bool(self._late or self._past_lost_kv or self._recent_late or num_past)
        self._is_closed = False

    @property
    def limit_ms(self) -> float:
        """T_min_res: what is left to the most urgent of those that can still be met; infinite where there is none."""
        heads = (timed.remaining_ms for each in (self._in_time, self._recent_in_time) for timed in each[:1])
        return min(heads, default=math.inf)

    def running(self) -> list[Request]:
        """Those with KV, by remaining time: the last can wait longest."""
        return [timed.request for timed in (*self._late, *self._in_time) if timed.request.is_running]

    def poll(self) -> Iterator[Timed]:
        """All of them, read lazily and once; who has been read ahead when the entrance closes does not come either."""
        yield from heapq.merge(self._in_time, self._recent_in_time, key=_remaining_ms)
        late = heapq.merge(self._late, self._late_lost_kv(), self._late_waiting(), key=_remaining_ms)
        yield from (timed for timed in late if not (self._is_closed and self._waits_past(timed.request)))

    def close_entrance(self) -> None:
        """Nobody who waits past a deadline can enter any more: stop reading those, who may be many."""
        self._is_closed = True

    def _waits_past(self, request: Request) -> bool:
        return not request.is_running and request.deadline_ms <= self._pace.now_ms

    def _late_lost_kv(self) -> Iterator[Timed]:
        """Often the first of them cannot enter, and the others need not be sorted."""
        if self._is_closed or not self._past_lost_kv:
            return
        first = min(map(self._timed, self._past_lost_kv), key=_remaining_ms)
        yield first
        if not self._is_closed:
            others = (request for request in self._past_lost_kv if request is not first.request)
            yield from sorted(map(self._timed, others), key=_remaining_ms)

    def _late_waiting(self) -> Iterator[Timed]:
        for request in self._past:
            if self._is_closed:
                break
            yield self._timed(request)
        yield from self._recent_late

    def _timed(self, request: Request) -> Timed:
        return Timed(remaining_ms(request, self._pace), request)

    def _not_past(self, latest_first: Iterator[Request]) -> Iterator[Request]:
        """Those that have never run here, up to one that is past its deadline and was nowhere else."""
        now_ms = self._pace.now_ms
        fresh = takewhile(lambda request: not request.was_admitted, latest_first)
        return takewhile(lambda request: request.deadline_ms > now_ms or request.num_resumed_tokens is not None, fresh)


def remaining_ms(request: Request, pace: Pace) -> float:
    """Until the step that has to bring the next token of its group, if the others come in steps of the usual length."""
    return request.deadline_ms - pace.now_ms - (request.num_group_tokens_left - 1) * pace.mean_step_ms


def all_remaining_ms(requests: Iterable[Request], pace: Pace) -> list[float]:
    """``remaining_ms`` of those that have a deadline."""
    now_ms, mean_ms = pace.now_ms, pace.mean_step_ms
    return [
        each.deadline_ms - now_ms - (each.num_group_tokens_left - 1) * mean_ms
        for each in requests
        if each.deadline_ms < math.inf
    ]


class _Alone:
    """Whether a request would meet its deadline in a step of its own. Most have more time than the longest such step
    of any could take, which is asked for once."""

    def __init__(
        self, model: LatencyModel, max_num_batched_tokens: int, pending: list[Timed], cache: RequestCache
    ) -> None:
        self._model = model
        self._cache = cache
        self._max_tokens = max_num_batched_tokens
        self._empty = BatchFeatures()
        longest = max((_most_computed(timed.request) for timed in pending), default=0)
        self._ample_ms = max(
            model.decode_cost_ms(self._empty, longest + 1),
            model.prefill_cost_ms(self._empty, max_num_batched_tokens, longest),
        )

    def in_time(self, timed: Timed) -> bool:
        return timed.remaining_ms >= self._ample_ms or timed.remaining_ms >= self._cost_ms(timed.request)

    def _cost_ms(self, request: Request) -> float:
        if request.is_decode:
            return self._model.decode_cost_ms(self._empty, request.num_computed_tokens + 1)
        num_computed = request.num_computed_tokens if request.is_running else self._cache.found(request).num_tokens
        num_tokens = min(request.num_tokens - num_computed, self._max_tokens)
        return self._model.prefill_cost_ms(self._empty, num_tokens, num_computed)


def _most_computed(request: Request) -> int:
    """Tokens before those of its next step: of one that waits the cache may have all but the last."""
    return request.num_computed_tokens if request.is_running else request.num_tokens - 1
