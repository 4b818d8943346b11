"""Planning K steps ahead of an executor whose engine has K pipeline stages: HyGen section A.1, "a scheduling history
archive of K steps".

While steps n-K+1 to n are in flight, step n+K is planned: by the time it starts, all of them have ended, and the
steps between, which are planned already, are in flight. So the plans are kept until their steps have started, and are
played on top of the executor's word. A request is in one step in flight at most.
"""

from collections import deque
from collections.abc import Iterable
from copy import copy

import msgspec

from shared.latency.model import LatencyModel
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.planning.mirror import ExecutorMirror
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest


class _Plan(msgspec.Struct, frozen=True):
    step: int
    schedule: Schedule
    entering: list[Request]


class Pipeline:
    """What an executor of one depth (K, at least 1) is expected to have in flight when each next step is planned."""

    def __init__(self, mirror: ExecutorMirror, depth: int) -> None:
        self._mirror = mirror
        self._depth = depth
        self._in_flight: deque[list[ScheduledRequest]] = deque()  # oldest first
        self._plans: deque[_Plan] = deque()  # of steps that have not started, as far as known
        self._num_played = 0  # leading ones of _plans that the mirror shows
        self._first_step = 0  # the next that the executor starts

    @property
    def next_step(self) -> int:
        """The step to plan next."""
        return self._plans[-1].step + 1 if self._plans else self._first_step

    @property
    def is_due(self) -> bool:
        """A plan is missing among the next K steps."""
        return self.next_step < self._first_step + self._depth

    @property
    def entering(self) -> list[str]:
        """Offline requests that plans bring whose steps have not started."""
        return [request.request_id for plan in self._plans for request in plan.entering]

    def observe(self, first_step: int, in_flight: Iterable[list[ScheduledRequest]]) -> list[Request]:
        """The executor's word, after the mirror has taken over the rest of it, requests in flight as they are: the
        steps in flight, oldest first, and the step that it starts next. Returns what plans bring whose steps have
        started. Where none is in flight, plans on their way may be lost and are forgotten."""
        brought: list[Request] = []
        self._first_step = first_step
        self._in_flight = deque(in_flight)
        self._num_played = 0
        while self._plans and (self._plans[0].step < first_step or not self._in_flight):
            plan = self._plans.popleft()
            if self._in_flight:
                brought += plan.entering
        return brought

    def plan(self, offline_queue: OfflineQueue, policy: Policy, model: LatencyModel) -> Schedule:
        """``next_step`` over the expected state: as soon as there is room in the pipeline and something to run that
        is not in flight. Without entries where nothing will be left to run. ``offline_queue`` may be asked again."""
        while self._num_played < len(self._plans):
            self._play(self._plans[self._num_played], policy, model)
            self._num_played += 1
        while True:
            if len(self._in_flight) < self._depth:
                schedule = self._mirror.plan(offline_queue, policy, model)
                if schedule.entries or not self._in_flight:
                    return schedule
            self._end_oldest(policy, model)

    def keep(self, schedule: Schedule, entering: list[Request]) -> None:
        """The plan of ``next_step`` is sent, with the offline requests that enter by it."""
        self._plans.append(_Plan(self.next_step, schedule, entering))

    def _play(self, plan: _Plan, policy: Policy, model: LatencyModel) -> None:
        """Start a planned step when the executor can: it has room for it, and blocks."""
        table = self._mirror.table
        for request in plan.entering:
            if request.request_id not in table:
                table.add(copy(request))
        known = ((entry, table.get(entry.request_id)) for entry in plan.schedule.entries)
        entries = [entry for entry, request in known if request is not None and not request.is_held]
        while len(self._in_flight) >= self._depth or any(self._is_in_flight(entry) for entry in entries):
            self._end_oldest(policy, model)
        self._mirror.preempt(plan.schedule.preempted)
        self._mirror.start(entries)
        while self._mirror.lacks_blocks and self._in_flight:
            self._end_oldest(policy, model)
        self._in_flight.append(entries)
        num_lost = table.count(plan.schedule.preempted, OFFLINE)
        self._mirror.pace = self._mirror.pace.after(plan.schedule, self._mirror.limits.max_num_seqs, num_lost)

    def _end_oldest(self, policy: Policy, model: LatencyModel) -> None:
        """Steps leave a pipeline one after another, a K-th of their time apart."""
        entries, elapsed_ms = self._in_flight.popleft(), 0.0
        if packing_named(policy.packing).uses_time:
            elapsed_ms = self._mirror.expected_ms(entries, model) / self._depth
        self._mirror.finish(entries, elapsed_ms)

    def _is_in_flight(self, entry: ScheduledRequest) -> bool:
        request = self._mirror.table.get(entry.request_id)
        return request is not None and request.is_in_flight
