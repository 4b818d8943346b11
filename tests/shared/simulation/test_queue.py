"""What the simulated offline-queue does beside plans: late work, work that is taken back, and what one cannot hold."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.request import Kind, Request
from shared.simulation.setup import ExecutorSetup
from tests.shared.simulation.test_executor import Heard, request
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


def test_what_no_executor_can_hold_ends_and_others_run() -> None:
    run = Heard([with_blocks(make_setup(), 16)] * 2)
    run.system.queue.add([offline("large", 300, 10), make_offline(0)])
    run.play([])
    assert reasons(run) == {"large": "error", "batch.0": "length"} and run.ran_on["large"] == ""


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


def test_where_a_rate_holds_requests_back_each_begins_when_its_time_has_come() -> None:
    """Four a second, of which each takes one short step; and those that come later, when all had ended."""
    run = Heard([make_setup("sarathi++", offline_rate="fixed", offline_qps=4.0)])
    for begun_s in (0.0, 10.1):
        run.system.events.advance(begun_s)
        run.told.clear()
        run.system.queue.add([offline(f"{begun_s}-{number}", 40, 1) for number in range(4)])
        run.play([])
        assert [each.start_s for each in run.told] == pytest.approx([begun_s + 0.25 * number for number in range(4)])
