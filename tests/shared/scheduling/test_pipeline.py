"""Plans made steps ahead, against those that are made once the outcome is there."""

from collections import deque
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.planning.pipeline import Pipeline
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.factories import MODEL, UNBOUNDED, make_mirror, make_request, queue_of

NUM_BLOCKS = 30
lengths = st.tuples(st.integers(1, 120), st.integers(1, 12))  # of the prompt, and of the output


class Executor:
    """It does what is planned, and all comes as foreseen."""

    def __init__(self, depth: int, limits: Limits, online: list[Request]) -> None:
        self.depth, self.step = depth, 0
        self.truth, self.mirror = make_mirror(limits), make_mirror(limits)
        self.truth.observe(online, [], NUM_BLOCKS)
        self.pipeline = Pipeline(self.mirror, depth)
        self.in_flight: deque[list[ScheduledRequest]] = deque()
        self.plans: dict[int, tuple[Schedule, list[Request]]] = {}

    def tell(self) -> None:
        """All that it holds, and what it runs."""
        self.mirror.observe([copy(each) for each in self.truth.table], [], self.truth.num_free_blocks)
        self.pipeline.observe(self.step, self.in_flight)

    def plan(self, waiting: list[Request]) -> list[Request]:
        """All steps that are due; who waits after them."""
        while self.pipeline.is_due:
            step, schedule = self.pipeline.next_step, self.pipeline.plan(queue_of(waiting), UNBOUNDED, MODEL)
            if not schedule.entries:
                break
            ids = {entry.request_id for entry in schedule.entries}
            entering = [each for each in waiting if each.request_id in ids]
            waiting = [each for each in waiting if each.request_id not in ids]
            self.pipeline.keep(schedule, entering)
            self.plans[step] = schedule, entering
        return waiting

    def run(self) -> None:
        """The next step, which is what would be planned now: as soon as there is room for it and it has something."""
        schedule, entering = self.plans.pop(self.step)
        for request in entering:
            self.truth.table.add(copy(request))
        if len(self.in_flight) == self.depth:
            self.truth.finish(self.in_flight.popleft())
        while not (now := self.truth.plan(no_queue, UNBOUNDED, MODEL)).entries:
            self.truth.finish(self.in_flight.popleft())
        assert (schedule.entries, schedule.preempted) == (now.entries, now.preempted)
        self.truth.preempt(schedule.preempted)
        self.truth.start(schedule.entries)
        self.in_flight.append(schedule.entries)
        self.step += 1


@given(
    depth=st.integers(1, 3),
    online=st.lists(lengths, max_size=6),
    offline=st.lists(lengths, max_size=5),
    max_seqs=st.integers(1, 5),
)
def test_a_plan_made_ahead_is_the_one_that_would_be_made_in_time(
    depth: int, online: list[tuple[int, int]], offline: list[tuple[int, int]], max_seqs: int
) -> None:
    made = [make_request(prompt=prompt, max_tokens=output) for prompt, output in online]
    waiting = [make_request(kind=Kind.OFFLINE, prompt=prompt, max_tokens=output) for prompt, output in offline]
    executor = Executor(depth, Limits(16, NUM_BLOCKS, 64, max_seqs), made)
    executor.tell()
    waiting = executor.plan(waiting)
    while executor.step in executor.plans:
        executor.run()
        executor.tell()
        waiting = executor.plan(waiting)
        assert executor.pipeline.next_step <= executor.step + depth
        assert executor.pipeline.entering == [r.request_id for _, rs in executor.plans.values() for r in rs]
    for entries in executor.in_flight:
        executor.truth.finish(entries)
    assert not executor.truth.table and not waiting and executor.truth.num_free_blocks == NUM_BLOCKS


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_plans_are_forgotten_where_nothing_is_in_flight(depth: int) -> None:
    """They may be lost; what they bring enters by others. Of plans whose steps have started it is told."""
    waiting = [make_request(f"off-{n}", Kind.OFFLINE, prompt=64) for n in range(5)]
    executor = Executor(depth, Limits(16, NUM_BLOCKS, 64, 5), [])
    executor.tell()
    executor.plan(waiting)
    first = executor.plans[0][0].entries
    assert executor.pipeline.entering == [f"off-{n}" for n in range(depth)] and not executor.pipeline.is_due
    brought = executor.pipeline.observe(1, [first])
    assert [each.request_id for each in brought] == ["off-0"] and executor.pipeline.is_due
    assert executor.pipeline.observe(1, []) == [] and executor.pipeline.entering == []
    assert executor.pipeline.next_step == 1
