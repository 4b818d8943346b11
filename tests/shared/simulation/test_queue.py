"""What the simulated offline-queue does beside plans: late work, work that is taken back, and what one cannot hold."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from shared.offline_queue.offline_pool import PackedRequest
from shared.offline_queue.scheduler import MAX_SET_ASIDE
from shared.protocol.handover import Taken
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind, Request
from shared.simulation.setup import ExecutorSetup, in_pools
from tests.shared.simulation.test_executor import Heard, request
from tests.shared.simulation.test_handovers import large
from tests.shared.simulation.test_system import make_offline, make_setup


def offline(request_id: str, num_prompt_tokens: int, num_tokens: int) -> tuple[Request, PackedRequest]:
    sampling = SamplingParams(num_tokens, ignore_eos=True)
    asked = GenerateRequest(request_id, Kind.OFFLINE, list(range(num_prompt_tokens)), sampling, 0.0)
    return Request(request_id, Kind.OFFLINE, num_prompt_tokens, num_prompt_tokens + num_tokens), PackedRequest.of(asked)


def with_blocks(setup: ExecutorSetup, num_blocks: int) -> ExecutorSetup:
    limits, spec = replace(setup.limits, num_blocks=num_blocks), structs.replace(setup.spec, num_blocks=num_blocks)
    return replace(setup, limits=limits, spec=spec)


def reasons(run: Heard) -> dict[str, str]:
    return {ended.sequence.request_id: ended.finish_reason.value for each in run.told for ended in each.ended}


@pytest.mark.parametrize("message_s", [0.0, 0.01])
def test_work_that_comes_to_idle_executors_begins_when_it_comes(message_s: float) -> None:
    run = Heard([make_setup()] * 2, message_s)
    run.play([])
    for time_s in (5.0, 50.0):
        run.system.events.advance(time_s)
        run.told.clear()
        run.system.queue.add([make_offline(int(time_s))])
        run.play([])
        assert run.told[0].start_s == pytest.approx(time_s + message_s)
    assert run.ended == {"batch.5": 1, "batch.50": 1}


def test_what_is_taken_back_while_it_runs_is_aborted() -> None:
    """The rest goes on."""
    run = Heard([make_setup()])
    run.system.queue.add([offline("long", 40, 300), offline("other", 60, 20)])
    events = run.system.events
    while not run.executor.replica.table.running(Kind.OFFLINE):
        events.run_next()
    run.system.queue.pool.discard(["long"])
    run.play([])
    assert reasons(run) == {"long": "abort", "other": "length"}
    assert run.num_tokens < 100 and not run.executor.replica.has_work


@pytest.mark.parametrize("order", [(16, 64), (64, 16)])
def test_what_one_executor_cannot_hold_runs_on_another(order: Sequence[int]) -> None:
    setup = make_setup()
    run = Heard([with_blocks(setup, num_blocks) for num_blocks in order])
    run.system.queue.add([offline("large", 300, 10)])
    run.play([])
    assert reasons(run) == {"large": "length"} and run.ran_on["large"] == f"executor-{order.index(64)}"


def test_what_one_executor_cannot_hold_takes_nothing_of_its_rate() -> None:
    """One enters each second, whatever stands before it that is for the larger one."""
    setup = make_setup("hygen-star", offline_qps=1.0)
    run = Heard([with_blocks(setup, 16), with_blocks(setup, 64)])
    large = [offline(f"large-{number}", 300, 1) for number in range(6)]
    run.system.queue.add([*large, *(offline(f"small-{number}", 40, 1) for number in range(4))])
    run.play([])
    ends_s = [progress.end_s for progress in run.told if progress.executor_id == "executor-0" and progress.ended]
    assert [int(end_s) for end_s in ends_s] == [0, 1, 2, 3]
    assert {run.ran_on[f"small-{number}"] for number in range(4)} == {"executor-0"}


def test_what_comes_one_by_one_is_held_to_the_rate() -> None:
    run = Heard([make_setup("hygen-star", offline_qps=1.0)])
    for number in range(12):
        work = [offline(f"batch.{number}", 40, 1)]
        run.system.events.at(0.25 * number, partial(run.system.queue.add, work))
    run.play([])
    assert [int(progress.end_s) for progress in run.told if progress.ended] == list(range(12))


def test_what_no_executor_can_hold_ends_and_others_run() -> None:
    run = Heard([with_blocks(make_setup(), 16)] * 2)
    run.system.queue.add([offline("large", 300, 10), make_offline(0)])
    run.play([])
    assert reasons(run) == {"large": "error", "batch.0": "length"} and run.ran_on["large"] == ""


def test_what_waits_behind_more_than_a_plan_passes_over_runs_as_well() -> None:
    """One plan looks at so many that no executor can hold."""
    run = Heard([with_blocks(make_setup("fcfs"), 16)])
    run.play([])
    too_large = [offline(f"large-{number}", 300, 10) for number in range(MAX_SET_ASIDE + 1)]
    run.system.queue.add([*too_large, offline("small", 40, 3)])
    run.play([])
    assert reasons(run) == {"small": "length"} | {f"large-{number}": "error" for number in range(MAX_SET_ASIDE + 1)}


def in_two_pools(message_s: float = 0.0) -> Heard:
    """A strict executor takes offline requests from a relaxed one."""
    run = Heard(in_pools(large(make_setup("ooco", budget_ms=30.0)), 2, 1), message_s)
    run.system.queue.add([make_offline(number) for number in range(40)])
    return run


def test_a_giver_is_planned_without_what_has_gone() -> None:
    """Before it has said so itself."""
    run, num_gone = in_two_pools(), 0
    queue = run.system.queue
    move = queue.on_taken

    def look(taken: Taken) -> None:
        nonlocal num_gone
        giver = queue._schedulers[taken.giver.executor_id]
        num_gone += giver.holds(taken.request_id)
        move(taken)
        assert not giver.holds(taken.request_id)

    queue.on_taken = look  # type: ignore[method-assign]
    run.play([])
    assert num_gone > 5


@pytest.mark.parametrize("message_s", [0.0, 0.004])
def test_what_is_taken_back_on_its_way_ends_where_it_has_gone(message_s: float) -> None:
    run, taken_back = in_two_pools(message_s), list[str]()
    queue = run.system.queue
    move = queue.on_taken

    def take_back_first(taken: Taken) -> None:
        if not taken_back:
            taken_back.append(taken.request_id)
            queue.pool.discard([taken.request_id])
        move(taken)

    queue.on_taken = take_back_first  # type: ignore[method-assign]
    run.play([])
    assert set(run.ended.values()) == {1} and len(run.ended) == 40
    assert [key for key, why in reasons(run).items() if why == "abort"] == taken_back
    assert run.system.executors[run.ran_on[taken_back[0]]].role is Role.STRICT
    assert not any(executor.replica.has_work for executor in run.system.executors.values())


def test_how_long_answers_become_is_learnt_from_those_that_ended_well() -> None:
    run = Heard([make_setup("bros")])
    pool = run.system.queue.pool
    run.system.queue.add([offline("short", 40, 7), offline("long", 40, 300)])
    events = run.system.events
    while not pool.num_learnt:
        events.run_next()
    pool.discard(["long"])
    run.play([])
    assert pool.num_learnt == 1 and reasons(run) == {"short": "length", "long": "abort"}


def test_less_of_plans_is_dropped_where_schedulers_hear_of_online_requests_on_their_way() -> None:
    dropped = []
    for hears in (True, False):
        run = Heard([make_setup()], message_s=0.004)
        if not hears:
            (scheduler,) = run.system.queue._schedulers.values()
            scheduler.on_inbox = lambda asked: None  # type: ignore[method-assign]
        run.system.queue.add([make_offline(number) for number in range(30)])
        run.play([request(number, 60, 20, arrival_s=0.1 * number) for number in range(10)])
        assert len(run.ended) == 40
        dropped.append(run.executor.replica.totals.offline_dropped)
    assert dropped[0] < dropped[1]


@pytest.mark.parametrize("num_executors", [1, 2])
def test_where_a_rate_holds_requests_back_each_begins_when_its_time_has_come(num_executors: int) -> None:
    """Four a second at each executor, of which each takes one short step; and those that come later, when all had
    ended."""
    run = Heard([make_setup("sarathi++", offline_rate="fixed", offline_qps=4.0)] * num_executors)
    for begun_s in (0.0, 10.1):
        run.system.events.advance(begun_s)
        run.told.clear()
        run.system.queue.add([offline(f"{begun_s}-{number}", 40, 1) for number in range(4 * num_executors)])
        run.play([])
        begins_s = [begun_s + 0.25 * number for number in range(4) for _ in range(num_executors)]
        assert sorted(each.start_s for each in run.told) == pytest.approx(begins_s)
