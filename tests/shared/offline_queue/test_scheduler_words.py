"""What a scheduler makes of an executor's single words, with a clock that stands still in between."""

from itertools import count

import pytest
from msgspec.structs import replace

from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import MAX_PLAN_BYTES, Scheduler, why_never_held_by_any
from shared.protocol.codec import encode
from shared.protocol.executors import ExecutorInfo
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import EndedRequest, PlanSource, StepStarted
from shared.scheduling.packing.pace import Pace
from shared.scheduling.placement.role import Role
from shared.scheduling.planning.mirror import ARRIVAL_GRACE_STEPS
from shared.scheduling.policy import Policy
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.offline_queue.test_scheduler import MODEL, make_offline, make_pool
from tests.shared.replica.factories import make_info
from tests.shared.replica.test_readers import ManualClock

ONE = "batch_1.1"
IDLE = StepStarted("executor-0", "epoch-1", 0, PlanSource.IDLE, True, [], [], [], 48)


class TickingClock(ManualClock):
    """A millisecond passes whenever it is looked at."""

    def monotonic_s(self) -> float:
        self.now_s += 0.001
        return self.now_s


def make_scheduler(
    pool: OfflinePool, info: ExecutorInfo | None = None, clock: ManualClock | None = None, policy: Policy | None = None
) -> Scheduler:
    return Scheduler(info or make_info(), pool, lambda: (policy or Policy(), MODEL), clock or ManualClock())


def online(request_id: str, prompt: int = 20, arrival_s: float = 0.0) -> GenerateRequest:
    return GenerateRequest(request_id, Kind.ONLINE, list(range(prompt)), SamplingParams(10), arrival_s, "gateway")


def entering(scheduler: Scheduler) -> list[str]:
    """By the plans that are due."""
    return [request.request_id for plan in scheduler.plan() for request in plan.admitted]


def held(request_id: str, kind: Kind = Kind.OFFLINE, num_in_flight: int = 0) -> Request:
    """One that decodes."""
    return Request(request_id, kind, 31, 40, 30, 2, was_admitted=True, num_in_flight_tokens=num_in_flight)


@pytest.mark.parametrize("ahead_ms", [-5000.0, 0.0, 5000.0])
@pytest.mark.parametrize(("later_ms", "first"), [(-0.05, "told"), (0.05, "sent")])
def test_deadlines_are_those_of_the_executor_by_whichever_clock(ahead_ms: float, later_ms: float, first: str) -> None:
    """Of one that the executor has told of, whose clock differs, and one that was sent to both and has waited for 100
    ms already, the one that is due first runs, if only by a twentieth of a millisecond."""
    strategy, clock = Strategy.of("bros", deadline_rule="arrival", ttft_slo_ms=400.0), ManualClock()
    clock.now_s = 100.0
    scheduler = make_scheduler(
        make_pool("fcfs", []), make_info(strategy, max_num_seqs=1), clock, Policy(packing=strategy.packing)
    )
    scheduler.on_inbox(online("sent", arrival_s=99.9))
    due_ms = 100_000.0 + 300.0 + later_ms - ahead_ms
    told = replace(held("told", Kind.ONLINE), deadline_ms=due_ms)
    scheduler.on_step(replace(IDLE, states=[told], pace=Pace(100_000.0 - ahead_ms)))
    (plan,) = scheduler.plan()
    assert [entry.request_id for entry in plan.entries] == [first]


def test_an_executor_that_says_that_it_has_grown_gets_larger_plans() -> None:
    info = make_info(max_num_seqs=1)
    scheduler = make_scheduler(pool := make_pool("fcfs", []), info)
    pool.add([make_offline(number, prompt=20) for number in range(3)])
    scheduler.registered(grown := replace(info, max_num_seqs=3))
    assert scheduler.info == grown
    scheduler.on_step(IDLE)
    assert len(entering(scheduler)) == 3


@pytest.mark.parametrize("is_told", [False, True])
def test_what_came_from_another_executor_may_lack_in_some_words(is_told: bool) -> None:
    """Until it was told of: then it is lost where it lacks."""
    scheduler = make_scheduler(pool := make_pool("fcfs", []))
    pool.add([make_offline(1)])
    pool.take(ONE, "executor-1")
    assert pool.move(ONE, "executor-1", "executor-0")
    scheduler.took(ONE)
    for _ in range(ARRIVAL_GRACE_STEPS - 1):
        scheduler.on_step(replace(IDLE, states=[held(ONE)] if is_told else []))
        assert pool.is_held(ONE, "executor-0")
    scheduler.on_step(IDLE)
    assert pool.num_waiting == 1 and not pool.is_held(ONE, "executor-0")


def test_what_was_cancelled_is_stopped_once_the_executor_says_that_it_has_it() -> None:
    """Not while a plan has yet to bring it."""
    for has_come in (False, True):
        scheduler = make_scheduler(pool := make_pool("fcfs", []), make_info(pipeline_depth=2))
        pool.add([make_offline(number, prompt=64, first=100 * number) for number in (1, 2)])
        scheduler.on_step(IDLE)
        first, second = scheduler.plan()
        assert [len(plan.admitted) for plan in (first, second)] == [1, 1]
        pool.discard(["batch_1.2"])
        running = Request(ONE, Kind.OFFLINE, 64, 74, 0, 4, was_admitted=True, num_in_flight_tokens=64)
        states = [running, Request("batch_1.2", Kind.OFFLINE, 64, 74)] if has_come else [running]
        stopped = scheduler.on_step(replace(IDLE, idle=False, entries=first.entries, states=states))
        assert stopped == (AbortRequests(["batch_1.2"]) if has_come else None)


def test_who_leaves_for_another_executor_is_not_stopped_before_it_has_left_or_stays() -> None:
    scheduler = make_scheduler(pool := make_pool("fcfs", []))
    pool.add([make_offline(1)])
    pool.take(ONE, "executor-0")
    pool.move(ONE, "executor-0", "executor-1")
    assert scheduler.on_step(replace(IDLE, states=[held(ONE, num_in_flight=HELD)])) is None
    assert scheduler.on_step(replace(IDLE, states=[held(ONE)])) == AbortRequests([ONE])


def test_who_is_to_be_stopped_is_in_no_plan() -> None:
    scheduler = make_scheduler(make_pool("fcfs", []))
    assert scheduler.on_step(replace(IDLE, states=[held("other"), held("on", Kind.ONLINE)])) == AbortRequests(["other"])
    (plan,) = scheduler.plan()
    assert [entry.request_id for entry in plan.entries] == ["on"]


@pytest.mark.parametrize(("reason", "waits"), [(FinishReason.ERROR, True), (FinishReason.LENGTH, False)])
def test_a_run_that_failed_is_over_once_the_executor_says_so(reason: FinishReason, waits: bool) -> None:
    """The failure is known before that. Another run that ended well is on its way to be seen."""
    scheduler = make_scheduler(pool := make_pool("fcfs", []))
    pool.add([make_offline(1)])
    scheduler.on_step(IDLE)
    assert entering(scheduler) == [ONE]
    pool.retry(ONE, 1)
    assert pool.num_waiting == 0
    scheduler.on_step(replace(IDLE, ended=[EndedRequest(ONE, reason, 3)]))
    assert pool.num_waiting == waits and pool.has_ended(ONE) is not waits


@pytest.mark.parametrize("is_busy", [False, True])
def test_time_in_which_nobody_waits_lets_nobody_in_later(is_busy: bool) -> None:
    """At one request a second: however long an executor had none, alone or beside online work."""
    clock, busy = ManualClock(), [held("on", Kind.ONLINE)] if is_busy else []
    info = make_info(Strategy.of("hygen-star", offline_qps=1.0))
    scheduler = make_scheduler(pool := make_pool("fcfs", []), info, clock)
    pool.add([make_offline(1)])
    expected = [[ONE], [], [], ["batch_1.2"], [], ["batch_1.3"]]
    for now_s, ids in zip((0.0, 50.0, 99.99, 100.0, 100.5, 101.0), expected, strict=True):
        clock.now_s = now_s
        if now_s == 100.0:
            pool.add([make_offline(number) for number in (2, 3)])
        scheduler.on_step(replace(IDLE, states=busy, ended=[EndedRequest(ONE, FinishReason.LENGTH, 3)]))
        assert entering(scheduler) == ids
        pool.discard(ids)
    assert scheduler.next_release_s() is None, "nobody waits"


def test_a_plan_brings_no_more_than_a_message_can_hold() -> None:
    """But for one that is larger by itself."""
    scheduler = make_scheduler(pool := make_pool("fcfs", []))
    lengths = [1_500_000] * 4 + [5_000_000] + [1_000] * 3
    for number, length in enumerate(lengths):
        made = make_offline(number).request
        pool.enter(replace(made, sampling=replace(made.sampling, stop=("x" * length,))))
    brought = []
    while pool.num_waiting:
        scheduler.on_step(IDLE)
        (plan,) = scheduler.plan()
        brought.append(len(plan.admitted))
        assert len(encode(plan)) < MAX_PLAN_BYTES or len(plan.admitted) == 1
        pool.discard([request.request_id for request in plan.admitted])
    assert brought == [2, 2, 1, 3]


@pytest.mark.parametrize(("preset", "num_bytes"), [("hygen-star", 0), ("hygen", MAX_PLAN_BYTES)])
def test_who_waits_for_blocks_of_online_requests_takes_nothing_of_the_rate_or_the_plan(
    preset: str, num_bytes: int
) -> None:
    """One passes two larger ones, at one request a second, or where each would fill a message by itself."""
    knobs = {"offline_qps": 1.0} if preset == "hygen-star" else {}
    scheduler = make_scheduler(pool := make_pool("fcfs", []), make_info(Strategy.of(preset, **knobs)))
    for number, prompt in ((1, 400), (2, 400), (3, 40)):
        made = make_offline(number, prompt=prompt).request
        pool.enter(replace(made, sampling=replace(made.sampling, stop=("x" * num_bytes,))))
    scheduler.on_step(replace(IDLE, states=[held("on", Kind.ONLINE)], num_free_blocks=20))
    assert entering(scheduler) == ["batch_1.3"]


def test_where_no_prompt_begins_no_offline_request_enters() -> None:
    for role, expected in ((Role.STRICT, []), (Role.RELAXED, [ONE])):
        scheduler = make_scheduler(pool := make_pool("fcfs", []), policy=Policy(role=role))
        pool.add([make_offline(1)])
        scheduler.on_step(IDLE)
        assert scheduler.is_for_prompts is bool(expected) and entering(scheduler) == expected


def test_why_nobody_can_hold_a_request_is_said_of_who_has_most_room() -> None:
    pool = make_pool("fcfs", [])
    pool.add([make_offline(1, prompt=700)])
    (request,) = pool.in_order()
    sizes = [(16, 20), (64, 10), (16, 30)]
    infos = [make_info(block_size=size, num_blocks=number, max_model_len=4096) for size, number in sizes]
    schedulers = [make_scheduler(pool, info) for info in infos]
    assert "cache of 640 tokens" in why_never_held_by_any(request, schedulers)
    strict = make_scheduler(pool, make_info(num_blocks=1000, max_model_len=4096), policy=Policy(role=Role.STRICT))
    assert "cache of 640 tokens" in why_never_held_by_any(request, [*schedulers, strict]), "none begins there"
    roomy = make_scheduler(pool, make_info(num_blocks=1000, max_model_len=4096))
    assert why_never_held_by_any(request, [*schedulers, roomy]) == why_never_held_by_any(request, []) == ""


def test_what_planning_takes_is_told() -> None:
    """Each plan of the same: the longest takes as long as the mean."""
    scheduler = make_scheduler(make_pool("fcfs", []), clock=TickingClock())
    for number in count(1):
        scheduler.on_step(replace(IDLE, states=[held("on", Kind.ONLINE)]))
        (plan,) = scheduler.plan()
        assert plan.entries == [ScheduledRequest("on", Kind.ONLINE, 1)]
        stats = scheduler.stats()
        assert stats.plans == number and 0.5 < stats.plan_ms_max < 5.0
        assert stats.plan_ms_mean == pytest.approx(stats.plan_ms_max)
        if number == 4:
            break


def test_of_online_requests_whose_end_was_not_heard_nothing_is_kept() -> None:
    """Of many that the executor never had, or whose end was in a message that was lost."""
    scheduler = make_scheduler(make_pool("fcfs", []))
    scheduler.on_inbox(online("kept"))
    for number in range(300):
        scheduler.on_inbox(online(f"lost-{number}"))
        scheduler.on_step(replace(IDLE, states=[held("kept", Kind.ONLINE)]))
    assert sum(bool(scheduler.hashes_of(f"lost-{number}")) for number in range(300)) < 100
    assert len(scheduler.hashes_of("kept")) == 1


def test_what_an_executor_that_waits_is_planned_for_is_the_present() -> None:
    """Its word may be old by then."""
    clock = ManualClock()
    pool = make_pool("fcfs", [])
    scheduler = make_scheduler(pool, clock=clock)
    scheduler.on_step(IDLE)
    clock.now_s = 9.0
    pool.add([make_offline(1)])
    scheduler.plan()
    assert scheduler._mirror.pace.now_ms >= 9000.0


def test_an_executor_is_known_to_hold_nothing_until_something_is_sent_to_it() -> None:
    pool = make_pool("fcfs", [])
    scheduler = make_scheduler(pool)
    assert not scheduler.knows_idle
    scheduler.on_step(IDLE)
    assert scheduler.knows_idle
    scheduler.on_inbox(online("a"))
    assert not scheduler.knows_idle
    scheduler.on_inbox(AbortRequests(["a"]))
    assert scheduler.knows_idle
    pool.add([make_offline(1)])
    assert entering(scheduler) == [ONE]
    assert not scheduler.knows_idle
    scheduler.on_step(replace(IDLE, epoch="another"))
    assert not scheduler.knows_idle
    scheduler.on_step(IDLE)
    assert scheduler.knows_idle, "the plan was lost"
