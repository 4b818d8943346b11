"""Plans made steps ahead, against those that are made once the outcome is there."""

from collections import deque
from copy import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.latency.features import BatchFeatures
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.planning.mirror import ExecutorMirror
from shared.scheduling.planning.pipeline import Pipeline
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.factories import MODEL, features_of, make_decode, make_request, queue_of

NUM_BLOCKS, AMPLE_BLOCKS = 30, 200
TIGHT = {"ttft_slo_ms": 60.0, "tpot_slo_ms": 20.0}
lengths = st.tuples(st.integers(1, 120), st.integers(1, 12))  # of the prompt, and of the output


class Executor:
    """It does what is planned, and all comes as foreseen, as fast as the model says."""

    def __init__(
        self,
        depth: int,
        limits: Limits,
        online: list[Request],
        preset: str = "sarathi++",
        budget_ms: float | None = None,
        **knobs: float,
    ) -> None:
        strategy = Strategy.of(preset, **knobs)
        self.depth, self.step, self.policy = depth, 0, strategy.policy(budget_ms)
        self.truth, self.mirror = (ExecutorMirror(limits, strategy, lambda request_id: ()) for _ in range(2))
        for request in online if strategy.uses_deadlines else ():
            strategy.token_slo.arrive(request, 0.0, 0.0)
        self.truth.observe(online, [], limits.num_blocks)
        self.pipeline = Pipeline(self.mirror, depth)
        self.in_flight: deque[list[ScheduledRequest]] = deque()
        self.plans: dict[int, tuple[Schedule, list[Request]]] = {}

    def tell(self) -> None:
        """All that it holds, and what it runs."""
        held = [copy(each) for each in self.truth.table]
        self.mirror.observe(held, [], self.truth.num_free_blocks, pace=self.truth.pace)
        self.pipeline.observe(self.step, self.in_flight)

    def plan(self, waiting: list[Request]) -> list[Request]:
        """All steps that are due; who waits after them."""
        while self.pipeline.is_due:
            step, schedule = self.pipeline.next_step, self.pipeline.plan(queue_of(waiting), self.policy, MODEL)
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
            self.end_oldest()
        while not (now := self.truth.plan(no_queue, self.policy, MODEL)).entries:
            self.end_oldest()
        assert (schedule.entries, schedule.preempted) == (now.entries, now.preempted)
        self.truth.preempt(schedule.preempted)
        self.truth.start(schedule.entries)
        self.truth.pace = self.truth.pace.after(schedule, self.truth.limits.max_num_seqs)
        self.in_flight.append(schedule.entries)
        self.step += 1

    def end_oldest(self) -> None:
        entries = self.in_flight.popleft()
        step_ms = MODEL.predict_ms(features_of(entries, {each.request_id: each for each in self.truth.table}))
        self.truth.finish(entries, step_ms / self.depth)


@pytest.mark.parametrize(
    ("preset", "num_blocks", "budget_ms", "knobs"),
    [
        ("sarathi++", NUM_BLOCKS, None, {}),
        ("hygen", AMPLE_BLOCKS, 40.0, {}),
        ("ooco", AMPLE_BLOCKS, 13.0, {"mix_samples": 1}),
        ("bros", AMPLE_BLOCKS, None, TIGHT),
        ("echo", AMPLE_BLOCKS, None, TIGHT),
    ],
    ids=["sarathi++", "hygen", "ooco", "bros", "echo"],
)
@given(
    depth=st.integers(1, 3),
    online=st.lists(lengths, max_size=6),
    offline=st.lists(lengths, max_size=5),
    max_seqs=st.integers(1, 5),
)
@example(  # a step that waits for the blocks of two before it
    depth=3,
    online=[(94, 5), (2, 4), (62, 5), (112, 3)],
    offline=[(96, 3), (31, 4), (33, 2), (33, 1)],
    max_seqs=4,
)
@example(  # one that was thought to have ended runs on, ahead of one that was preempted
    depth=3,
    online=[],
    offline=[(64, 5), (64, 5), (110, 4), (111, 6), (79, 4)],
    max_seqs=2,
)
def test_a_plan_made_ahead_is_the_one_that_would_be_made_in_time(
    preset: str,
    num_blocks: int,
    budget_ms: float | None,
    knobs: dict[str, float],
    depth: int,
    online: list[tuple[int, int]],
    offline: list[tuple[int, int]],
    max_seqs: int,
) -> None:
    made = [make_request(prompt=prompt, max_tokens=output) for prompt, output in online]
    waiting = [make_request(kind=Kind.OFFLINE, prompt=prompt, max_tokens=output) for prompt, output in offline]
    executor = Executor(depth, Limits(16, num_blocks, 64, max_seqs), made, preset, budget_ms, **knobs)
    executor.tell()
    waiting = executor.plan(waiting)
    while executor.step in executor.plans:
        executor.run()
        executor.tell()
        waiting = executor.plan(waiting)
        assert executor.pipeline.next_step <= executor.step + depth
        assert executor.pipeline.entering == [r.request_id for _, rs in executor.plans.values() for r in rs]
    while executor.in_flight:
        executor.end_oldest()
    assert not executor.truth.table and not waiting and executor.truth.num_free_blocks == num_blocks


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


def test_a_plan_is_played_without_who_is_about_to_move_and_brings_nobody_twice() -> None:
    executor = Executor(2, Limits(16, NUM_BLOCKS, 64, 5), [])
    runs, stays, moves = (make_decode(name, context=20) for name in ("runs", "stays", "moves"))
    entering = make_request("enters", Kind.OFFLINE, prompt=20)
    planned = [
        ScheduledRequest(each.request_id, each.kind, each.num_remaining_tokens) for each in (stays, moves, entering)
    ]
    executor.pipeline.keep(Schedule(planned, [], 0.0), [entering])
    runs.num_in_flight_tokens, moves.num_in_flight_tokens = 1, HELD
    executor.mirror.observe([runs, stays, moves, copy(entering)], [], NUM_BLOCKS - 6)
    executor.pipeline.observe(0, [[ScheduledRequest("runs", Kind.ONLINE, 1)]])
    schedule = executor.pipeline.plan(no_queue, executor.policy, MODEL)
    assert schedule.entries == [ScheduledRequest("runs", Kind.ONLINE, 1)], "the others are in the step before"
    table = executor.mirror.table
    assert [each.request_id for each in table if each.is_in_flight] == ["stays", "moves", "enters"] and moves.is_held


@pytest.mark.parametrize(("preset", "uses_time"), [("sarathi++", False), ("bros", True)])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_is_planned_at_the_pace_and_the_time_at_which_it_starts(
    preset: str, uses_time: bool, depth: int
) -> None:
    executor = Executor(depth, Limits(16, NUM_BLOCKS, 64, 5), [], preset)
    runs, stays, waits = make_decode("runs", context=20), make_decode("stays", context=40), make_request("waits")
    runs.num_in_flight_tokens, pace = 1, Pace(now_ms=100.0, seed=5)
    planned = Schedule([ScheduledRequest("stays", Kind.ONLINE, 1)], [], 0.0)
    executor.pipeline.keep(planned, [])
    executor.mirror.observe([runs, stays, waits], [], NUM_BLOCKS - 5, pace=pace)
    executor.pipeline.observe(0, [[ScheduledRequest("runs", Kind.ONLINE, 1)]])
    executor.pipeline.plan(no_queue, executor.policy, MODEL)
    contexts = [21, 41][: 3 - depth]  # of those that end before, one after another
    taken_ms = sum(MODEL.predict_ms(BatchFeatures(0, 0, context, 1)) for context in contexts) / depth
    started = pace.after(planned, 5).at(100.0 + taken_ms if uses_time else 100.0)
    assert executor.mirror.pace == replace(started, now_ms=pytest.approx(started.now_ms))


def test_of_those_whom_a_planned_step_preempts_the_offline_ones_are_evictions() -> None:
    executor = Executor(2, Limits(16, NUM_BLOCKS, 64, 5), [])
    kinds = {"runs": Kind.ONLINE, "on": Kind.ONLINE, "off": Kind.OFFLINE, "stays": Kind.ONLINE}
    held = [make_decode(name, kind, context=20) for name, kind in kinds.items()]
    held[0].num_in_flight_tokens = 1
    executor.pipeline.keep(Schedule([ScheduledRequest("stays", Kind.ONLINE, 1)], ["on", "off"], 0.0), [])
    executor.mirror.observe(held, [], NUM_BLOCKS - 8)
    executor.pipeline.observe(0, [[ScheduledRequest("runs", Kind.ONLINE, 1)]])
    executor.pipeline.plan(no_queue, executor.policy, MODEL)
    assert executor.mirror.pace.evictions.lost == 1


def test_a_planned_step_has_the_blocks_of_who_ends_before_it() -> None:
    """And no others: who waits after it finds two."""
    executor = Executor(1, Limits(16, 12, 512, 5), [])
    ends = make_request("ends", prompt=150, output=9, computed=158, max_tokens=10)
    enters, waits = make_request("enters", prompt=150), make_request("waits", Kind.OFFLINE, prompt=100)
    ends.num_in_flight_tokens = 1
    executor.mirror.observe([ends, enters], [], 2)
    executor.pipeline.observe(1, [[ScheduledRequest("ends", Kind.ONLINE, 1)]])
    executor.pipeline.keep(Schedule([ScheduledRequest("enters", Kind.ONLINE, 150)], [], 0.0), [])
    schedule = executor.pipeline.plan(queue_of([waits]), executor.policy, MODEL)
    assert schedule.entries == [ScheduledRequest("enters", Kind.ONLINE, 1)] and executor.mirror.num_free_blocks == 2
