"""Which plan a step runs by, where one is there, and what is said of each step."""

import pytest
from msgspec.structs import replace

from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import PlanSource, StepPlan
from shared.replica.engine import StepResult
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.replica.factories import make_info
from tests.shared.replica.test_replica import MODEL


def make_planner(depth: int = 1, max_num_seqs: int = 8, **spec: object) -> tuple[StepPlanner, Replica]:
    info = make_info(max_num_seqs=max_num_seqs, pipeline_depth=depth, **spec)
    replica = Replica(info.limits(), info.spec, None)
    return StepPlanner(replica, info.executor_id, info.epoch, depth), replica


def request_of(request_id: str, kind: Kind = Kind.ONLINE, prompt: int = 20, max_tokens: int = 8) -> GenerateRequest:
    first = 37 * sum(request_id.encode()) % 40_000
    sampling = SamplingParams(max_tokens, ignore_eos=True)
    return GenerateRequest(request_id, kind, list(range(first, first + prompt)), sampling, 0.0, "gateway")


def plan_of(step: int, *admitted: GenerateRequest, online: tuple[str, ...] = (), wants_all: bool = False) -> StepPlan:
    """Of a whole prompt each, behind a decode each."""
    entries = [ScheduledRequest(request_id, Kind.ONLINE, 1) for request_id in online]
    entries += [ScheduledRequest(each.request_id, each.kind, len(each.prompt_token_ids)) for each in admitted]
    return StepPlan("executor-0", "epoch-1", step, entries, list(admitted), [], 1.0, wants_all=wants_all)


def run(planner: StepPlanner, replica: Replica) -> PlanSource | None:
    """A step, where there is one: by whose plan."""
    source, running = planner.next_step(Policy(), MODEL)
    if not running:
        planner.rest()
        return None
    message = planner.start(source)
    assert (message.executor_id, message.epoch, message.idle) == ("executor-0", "epoch-1", False)
    assert message.step == planner.step - 1 and message.source is source
    assert message.entries == [ScheduledRequest(each.request_id, each.kind, count) for each, count in running]
    finish(replica)
    return source


def finish(replica: Replica) -> None:
    oldest, held = replica.in_flight()[0], {request.request_id: request for request in replica.table}
    ends = (each for each in oldest if held[each.request_id].num_remaining_tokens == each.num_scheduled_tokens)
    replica.finish(StepResult({each.request_id: 7 for each in ends}, 1.0))


def test_plans_of_far_steps_are_not_kept() -> None:
    """They would stay for ever."""
    planner, replica = make_planner(depth=2)
    for step in range(2, 10**6, 10**5):
        planner.take_plan(plan_of(step))
    assert list(planner._plans) == [2] and replica.totals.plans_stale == 9


@pytest.mark.parametrize("depth", [1, 2])
def test_a_plan_is_that_of_its_step(depth: int) -> None:
    """It comes as many steps before it as the pipeline is deep, or later, as long as its step has not started."""
    planner, replica = make_planner(depth)
    replica.submit(request_of("on", max_tokens=30))
    assert run(planner, replica) is PlanSource.IDLE and planner.step == 1 and not planner.is_idle
    early, in_time = request_of("early", Kind.OFFLINE), request_of("in time", Kind.OFFLINE)
    planner.take_plan(plan_of(1 + depth, early, online=("on",)))
    planner.take_plan(plan_of(1, in_time, online=("on",)))
    assert planner.has_plan and run(planner, replica) is PlanSource.PLAN
    assert "in time" in replica.table and "early" not in replica.table
    for _ in range(depth - 1):
        assert not planner.has_plan and run(planner, replica) is PlanSource.LOCAL
    assert planner.has_plan and run(planner, replica) is PlanSource.PLAN and "early" in replica.table
    totals = replica.totals
    assert (totals.steps, totals.steps_planned, totals.steps_local) == (2 + depth, 2, depth - 1)
    assert (totals.steps_idle, totals.plans_stale) == (1, 0)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_plan_that_comes_too_late_leaves_its_requests(is_late: bool) -> None:
    """Its step has started, or is said to have."""
    planner, replica = make_planner()
    replica.submit(request_of("on"))
    run(planner, replica)
    planner.take_plan(plan_of(1 if is_late else 0, request_of("late", Kind.OFFLINE)), is_late)
    assert not planner.has_plan and replica.totals.plans_stale == 1 and "late" in replica.table


def test_what_has_ended_does_not_come_again_with_a_plan_that_could_not_know() -> None:
    """With one that was made when that was told it does: it is to be tried again."""
    planner, replica = make_planner()
    short = request_of("short", Kind.OFFLINE, max_tokens=1)
    planner.take_plan(plan_of(0, short))
    assert run(planner, replica) is PlanSource.PLAN
    assert [each.sequence.request_id for each in planner.take_ended()] == ["short"]
    planner.take_plan(plan_of(0, short, request_of("other", Kind.OFFLINE)))
    assert [each.request_id for each in replica.table] == ["other"] and replica.totals.plans_stale == 1
    run(planner, replica)
    planner.take_plan(plan_of(1, short))
    assert [each.request_id for each in replica.table] == ["other", "short"]


def test_a_plan_of_which_nothing_is_left_gives_way_to_one_made_here() -> None:
    planner, replica = make_planner()
    replica.submit(request_of("on", max_tokens=2))
    for expected in (PlanSource.IDLE, PlanSource.LOCAL):
        assert run(planner, replica) is expected
    planner.take_plan(plan_of(2, online=("on",)))
    assert "on" not in replica.table and run(planner, replica) is None
    replica.submit(request_of("off", Kind.OFFLINE))
    assert planner.has_plan and run(planner, replica) is PlanSource.IDLE
    assert replica.table.running(Kind.OFFLINE).keys() == {"off"}


def test_what_a_plan_brings_comes_once() -> None:
    """It is looked at again where its step was begun ahead and taken back, or where nothing of it could run."""
    planner, replica = make_planner(takes_steps_ahead=True)
    replica.submit(request_of("on", max_tokens=30))
    planner.start(planner.next_step(Policy(), MODEL)[0])
    too_long = request_of("too long", Kind.OFFLINE, prompt=600)
    planner.take_plan(plan_of(1, request_of("off", Kind.OFFLINE), too_long, online=("on",)))
    planner.look_ahead(Policy(), MODEL)
    replica.abort(["off"])
    replica.take_back()
    assert [each.sequence.request_id for each in planner.take_ended()] == ["too long", "off"]
    finish(replica)
    assert run(planner, replica) is PlanSource.PLAN and planner.take_ended() == []
    assert [each.request_id for each in replica.table] == ["on"]


def test_after_a_rest_as_many_steps_as_the_pipeline_has_were_due_to_nobody() -> None:
    planner, replica = make_planner(depth=3)
    for request_id in ("first", "second"):
        assert planner.is_idle
        replica.submit(request_of(request_id, max_tokens=6))
        sources = [run(planner, replica) for _ in range(7)]
        assert sources == [PlanSource.IDLE] * 3 + [PlanSource.LOCAL] * 3 + [None]


def test_what_is_said_while_nothing_runs() -> None:
    """All that is held, so that a plan can come."""
    planner, replica = make_planner()
    message = planner.idle_message()
    assert (message.step, message.source, message.idle) == (0, PlanSource.IDLE, True)
    assert (message.entries, message.in_flight, message.states) == ([], [], [])
    replica.submit(request_of("off", Kind.OFFLINE))
    assert [state.request_id for state in planner.idle_message().states] == ["off"]
    assert planner.idle_message().states, "once more"


def test_waiting_online_requests_are_told_once_and_all_of_them_to_who_has_missed_something() -> None:
    """But in a pipeline, where all are told each time."""
    for depth in (1, 2):
        planner, replica = make_planner(depth, max_num_seqs=1)
        for request_id in ("runs", "waits", "waits too"):
            replica.submit(request_of(request_id))
        told = []
        for turn in range(4):
            if turn == 2:
                planner.take_plan(plan_of(planner.step + 1, wants_all=True))
            source, _ = planner.next_step(Policy(), MODEL)
            message = planner.start(source)
            told.append([state.request_id for state in message.states])
            assert (message.num_fresh is None) is (len(told[-1]) == 3)
            finish(replica)
        everybody, runs = ["runs", "waits", "waits too"], ["runs"]
        assert told == ([everybody, runs, everybody, runs] if depth == 1 else [everybody] * 4)


def test_each_end_is_told_in_the_next_message() -> None:
    planner, replica = make_planner()
    for number in range(4):
        replica.submit(request_of(f"r{number}", prompt=10, max_tokens=1 + number))
    ended = []
    while run(planner, replica):
        ended.append([each.sequence.request_id for each in planner.take_ended()])
        message = planner.idle_message()
        assert [each.request_id for each in message.ended] == ended[-1]
        assert planner.idle_message().ended == []
    assert ended == [["r0"], ["r1"], ["r2"], ["r3"]]


def test_steps_in_flight_are_told_oldest_first() -> None:
    planner, replica = make_planner(depth=2, max_num_seqs=1)
    for request_id in ("first", "second"):
        replica.submit(request_of(request_id))
        source, _ = planner.next_step(Policy(), MODEL)
        message = planner.start(source)
    assert [[entry.request_id for entry in step] for step in message.in_flight] == [["first"]]
    assert [entry.request_id for entry in message.entries] == ["second"]


def test_a_step_ahead_runs_by_the_plan_of_its_step() -> None:
    for has_plan in (False, True):
        planner, replica = make_planner(takes_steps_ahead=True)
        replica.submit(request_of("on"))
        source, _ = planner.next_step(Policy(), MODEL)
        planner.start(source)
        replica.submit(request_of("other"))
        if has_plan:
            planner.take_plan(replace(plan_of(1, online=("on",)), latency_ms=3.0))
        source, running = planner.look_ahead(Policy(), MODEL)
        assert source is (PlanSource.PLAN if has_plan else PlanSource.LOCAL)
        assert [sequence.request_id for sequence, _ in running] == ["on", "other"]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_what_is_aborted_before_its_plan_is_looked_at_does_not_run(looks_ahead: bool) -> None:
    planner, replica = make_planner(takes_steps_ahead=True)
    replica.submit(request_of("on", max_tokens=30))
    planner.start(planner.next_step(Policy(), MODEL)[0])
    planner.take_plan(plan_of(1, *(request_of(name, Kind.OFFLINE) for name in ("off", "other")), online=("on",)))
    planner.abort(["off", "unknown"])
    if looks_ahead:
        planner.look_ahead(Policy(), MODEL)
        replica.take_back()
    finish(replica)
    _, running = planner.next_step(Policy(), MODEL)
    assert [sequence.request_id for sequence, _ in running] == ["on", "other"]
    assert [each.sequence.request_id for each in planner.take_ended()] == ["off"]
    planner.start(PlanSource.PLAN)
    finish(replica)
    planner.take_plan(plan_of(2, request_of("off", Kind.OFFLINE), online=("on",)))
    _, running = planner.next_step(Policy(), MODEL)
    assert "off" in [sequence.request_id for sequence, _ in running], "sent again, it comes"
