"""The worked example of docs/scheduler.md, as the code computes it."""

import pytest

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.limits import Limits
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
