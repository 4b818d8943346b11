"""The worked example of docs/scheduler.md, as the code computes it."""

import random

import pytest

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.mix_decoding import MixDecodingPacking
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.two_phase import TwoPhasePacking
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.table import RequestTable

MODEL = LinearLatencyModel(
    base=20.0,
    prefill_token=0.5,
    kv_token=0.002,
    prefill_square=0.0,
    kv_square=0.0,
    prefill_request=1.0,
    decode_request=1.0,
)
LIMITS = Limits(block_size=16, num_blocks=100, max_num_batched_tokens=256, max_num_seqs=16)
BUDGET = Policy(latency_budget_ms=60.0)


def make_table(*more: Request) -> RequestTable:
    """Ann and Ben chat; line 1 and 2 of a batch run."""
    table = RequestTable()
    for request in (
        Request("ann", Kind.ONLINE, num_tokens=500, max_total_tokens=600, num_computed_tokens=499, num_blocks=32),
        Request("ben", Kind.ONLINE, num_tokens=30, max_total_tokens=90),
        Request("line-1", Kind.OFFLINE, num_tokens=300, max_total_tokens=350, num_computed_tokens=299, num_blocks=19),
        Request("line-2", Kind.OFFLINE, num_tokens=200, max_total_tokens=250, num_computed_tokens=160, num_blocks=10),
        *more,
    ):
        table.add(request)
    return table


def make_state(table: RequestTable) -> StepState:
    """39 blocks are free, and line 1 and 2 hold 29."""
    return StepState(table, 39, 29, LIMITS, BUDGET, MODEL, Pace())


def test_the_plan() -> None:
    queue = [Request("line-3", Kind.OFFLINE, num_tokens=120, max_total_tokens=150)]
    schedule = TwoPhasePacking().schedule(make_state(make_table()), lambda view: iter(queue))
    assert [(e.request_id, e.num_scheduled_tokens) for e in schedule.entries] == [
        ("ann", 1),
        ("ben", 30),
        ("line-1", 1),
        ("line-2", 38),
    ]
    after_online = MODEL.predict_ms(BatchFeatures(30, 1, 500, 1))
    assert after_online == pytest.approx(38.0)
    assert MODEL.decode_cost_ms(BatchFeatures(30, 1, 500, 1), 300) == pytest.approx(1.6)
    assert MODEL.prefill_cost_ms(BatchFeatures(30, 1, 800, 2), 38, 160) == pytest.approx(20.0)
    assert schedule.latency_ms == pytest.approx(59.6)


def test_what_becomes_of_it_when_cleo_arrives() -> None:
    plan = [
        ScheduledRequest("ann", Kind.ONLINE, 1),
        ScheduledRequest("ben", Kind.ONLINE, 30),
        ScheduledRequest("line-1", Kind.OFFLINE, 1),
        ScheduledRequest("line-2", Kind.OFFLINE, 38),
    ]
    table = make_table(Request("cleo", Kind.ONLINE, num_tokens=24, max_total_tokens=60))
    schedule = TwoPhasePacking().reconcile(make_state(table), plan, [])
    assert [(e.request_id, e.num_scheduled_tokens) for e in schedule.entries] == [
        ("ann", 1),
        ("ben", 30),
        ("cleo", 24),
        ("line-1", 1),
        ("line-2", 12),
    ]
    assert schedule.latency_ms == pytest.approx(59.6)
    assert schedule.num_dropped == 0


def test_mix_decoding_beside_the_online_work() -> None:
    """Two at random, then the shortest that fit."""
    lines = [
        Request(f"line-{n}", Kind.OFFLINE, 200 * n, 200 * n + 50, 200 * n - 1, -(-200 * n // 16)) for n in range(1, 11)
    ]
    drawn = {"line-8", "line-3"}
    seed = next(n for n in range(1000) if {each.request_id for each in random.Random(n).sample(lines, 2)} == drawn)
    policy = Policy(60.0, packing="mix-decoding", mix_samples=2)
    online = [request for request in make_table() if request.kind is Kind.ONLINE]
    table = RequestTable()
    for request in (*online, *lines):
        table.add(request)
    state = StepState(table, 1000, 1000, LIMITS, policy, MODEL, Pace(seed=seed))
    schedule = MixDecodingPacking().schedule(state, no_queue)
    chosen = {entry.request_id for entry in schedule.entries if entry.kind is Kind.OFFLINE}
    assert chosen == {*drawn, "line-1", "line-2", "line-4", "line-5", "line-6"}
    assert schedule.latency_ms == pytest.approx(38.0 + 4.2 + 2.2 + 1.4 + 1.8 + 2.6 + 3.0 + 3.4)
