"""Steps whose tokens are held to a multiple (BlendServe section 4)."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import PACKINGS, packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule
from shared.scheduling.strategy import Strategy
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.factories import (
    held_requests,
    make_decode,
    make_request,
    make_table,
    queue_of,
    step_state,
    tokens,
)

LIMITS = Limits(block_size=16, num_blocks=4000, max_num_batched_tokens=600, max_num_seqs=256)
CUTTING = [name for name, packing in PACKINGS.items() if packing.cuts_to_multiples]


def state_of(
    table: RequestTable, name: str = "two-phase", multiple: int = 128, budget_ms: float = math.inf
) -> StepState:
    return step_state(table, LIMITS, Policy(budget_ms, packing=name, batch_multiple=multiple))


def planned(*held: Request, prompts: tuple[int, ...] = (), multiple: int = 128, limit: int = 600) -> dict[str, int]:
    queue = [make_request(f"new-{number}", Kind.OFFLINE, prompt=prompt) for number, prompt in enumerate(prompts)]
    state = step_state(
        make_table(*held), replace(LIMITS, max_num_batched_tokens=limit), Policy(batch_multiple=multiple)
    )
    return tokens(packing_named("two-phase").schedule(state, queue_of(queue)))


def decodes(count: int, kind: Kind = Kind.OFFLINE) -> list[Request]:
    return [make_decode(f"{kind.name.lower()}-{number}", kind) for number in range(count)]


def test_the_last_prompts_are_cut() -> None:
    assert planned(prompts=(250, 20)) == {"new-0": 250, "new-1": 6}
    assert planned(prompts=(250, 20), multiple=0) == {"new-0": 250, "new-1": 20}
    assert planned(prompts=(210, 20), multiple=100) == {"new-0": 200}, "of the last nothing is left"
    assert planned(*decodes(100), prompts=(200,))["new-0"] == 156
    beside = planned(*decodes(30, Kind.ONLINE), *decodes(30), prompts=(220,))
    assert beside["new-0"] == 196 and len(beside) == 61


def test_what_fills_most_of_a_multiple_stays() -> None:
    assert sum(planned(prompts=(900,), limit=512).values()) == 512
    assert sum(planned(prompts=(900,), limit=500).values()) == 500, "12 short of four of them"
    assert sum(planned(prompts=(900,), limit=448).values()) == 384, "just half of the fourth"


def test_nobody_is_held_up_for_little() -> None:
    alone = planned(*decodes(150))
    assert len(alone) == 150, "decodes run as they are"
    assert planned(*decodes(128), prompts=(20,))["new-0"] == 20, "it would never begin"
    assert planned(*decodes(120), prompts=(20,))["new-0"] == 20, "it would lose 12"
    assert planned(*decodes(120), prompts=(30,))["new-0"] == 30, "it would lose 22"
    assert planned(*decodes(120), prompts=(16,))["new-0"] == 8
    assert planned(prompts=(60,)) == {"new-0": 60}
    online = planned(*decodes(120, Kind.ONLINE), make_request("on", prompt=30), prompts=())
    assert online["on"] == 30, "online prompts are never cut"


def online_part(schedule: Schedule) -> dict[str, int]:
    return {entry.request_id: entry.num_scheduled_tokens for entry in schedule.entries if entry.kind is Kind.ONLINE}


@pytest.mark.parametrize("name", CUTTING)
@given(
    held=st.lists(held_requests, max_size=30),
    prompts=st.lists(st.integers(1, 400), max_size=6),
    multiple=st.sampled_from([8, 64, 128]),
    budget_ms=st.sampled_from([60.0, 200.0, math.inf]),
)
def test_against_the_step_without(
    name: str, held: list[Request], prompts: list[int], multiple: int, budget_ms: float
) -> None:
    """Online work is the same, of offline work at most half of the prompts' tokens is cut, and what is left is a
    multiple or nearly the next."""
    table, packing = make_table(*held), packing_named(name)
    queue = [make_request(f"new-{number}", Kind.OFFLINE, prompt=prompt) for number, prompt in enumerate(prompts)]
    whole = packing.schedule(state_of(table, name, 0, budget_ms), queue_of(queue))
    state = state_of(table, name, multiple, budget_ms)
    cut = packing.schedule(state, queue_of(queue))
    before, after = tokens(whole), tokens(cut)
    assert online_part(cut) == online_part(whole) and cut.preempted == whole.preempted
    assert all(after.get(key, 0) <= count for key, count in before.items()) and after.keys() <= before.keys()
    by_id = {request.request_id: request for request in (*held, *queue)}
    assert all(after[key] == 1 for key in before if by_id[key].is_decode)
    chunks = {key for key in before if by_id[key].kind is Kind.OFFLINE and not by_id[key].is_decode}
    num_cut = sum(before.values()) - sum(after.values())
    num_chunk_tokens = sum(before[key] for key in chunks)
    assert 2 * num_cut <= num_chunk_tokens
    surplus = sum(after.values()) % multiple
    assert surplus == 0 or 2 * surplus > min(multiple, num_chunk_tokens)
    for request in queue:
        table.add(request)
    again = packing.reconcile(state, cut.entries, cut.preempted)
    if packing.keeps_plans:
        assert tokens(again) == after and again.num_dropped == 0


@pytest.mark.parametrize("name", CUTTING)
def test_an_arrival_cuts_a_plan_to_the_multiple(name: str) -> None:
    table = make_table(*decodes(28))
    prompt = make_request("prompt", Kind.OFFLINE, prompt=260)
    state = state_of(table, name)
    plan = packing_named(name).schedule(state, queue_of([prompt]))
    assert tokens(plan)["prompt"] == 228
    table.add(prompt)
    table.add(make_request("on", prompt=40))
    fitted = packing_named(name).reconcile(state, plan.entries, plan.preempted)
    assert (tokens(fitted)["on"], tokens(fitted)["prompt"]) == (40, 188)


@pytest.mark.parametrize("name", CUTTING)
@pytest.mark.parametrize("num_decodes", [0, 60, 120, 127, 128])
def test_every_prompt_is_computed(name: str, num_decodes: int) -> None:
    """Whatever decodes run beside: what is left of the prompts at least halves with each step."""
    table = make_table(*decodes(num_decodes))
    waiting = [make_request(f"new-{number}", Kind.OFFLINE, prompt=prompt) for number, prompt in enumerate((20, 300, 7))]
    for request in waiting:
        table.add(request)
    for _ in range(9):  # 2 ** 9 > 327
        schedule = packing_named(name).schedule(state_of(table, name), no_queue)
        for request_id, num_tokens in tokens(schedule).items():
            request = table.get(request_id)
            if request is not None and request in waiting:
                request.num_computed_tokens += num_tokens
                request.num_blocks = -(-request.num_computed_tokens // 16)
                if request_id in table.waiting(Kind.OFFLINE):
                    table.start(request)
                if request.num_computed_tokens == request.num_tokens:
                    table.remove(request_id)
    assert not [request for request in waiting if request in list(table)]


def test_packings_that_cut_nothing_refuse_it() -> None:
    for preset in ("bros", "fcfs", "round-robin"):
        with pytest.raises(ValueError, match="cuts no prompts to multiples: leave --batch-multiple out"):
            Strategy.of(preset, batch_multiple=128)
    for preset in ("hygen", "echo"):
        strategy = Strategy.of(preset, batch_multiple=128)
        assert {strategy.policy(each).batch_multiple for each in (None, 40.0)} == {128}
    assert Strategy().policy(40.0).batch_multiple == 0
