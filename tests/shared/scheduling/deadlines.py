"""Makers of online requests with deadlines, of step states, and what a slow reader would compute of them."""

from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.scheduling.limits import Limits
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.policy import Policy
from shared.scheduling.request import Request
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.factories import (
    MODEL,
    computed_lengths,
    make_decode,
    make_request,
    prompt_lengths,
    step_state,
)

NOW_MS = 5000.0
LIMITS = Limits(block_size=16, num_blocks=4000, max_num_batched_tokens=512, max_num_seqs=64)
PACE = Pace(now_ms=NOW_MS, mean_step_ms=20.0)


def due(request: Request, in_ms: float, group_left: int = 1) -> Request:
    """The same request, its next tokens due so long from now."""
    request.deadline_ms = NOW_MS + in_ms
    request.num_group_tokens_left = group_left
    return request


def make_timed_table(requests: list[Request]) -> RequestTable:
    """Those that were admitted and have no KV have lost it."""
    table = RequestTable()
    for request in requests:
        lost_kv = request.was_admitted and not request.is_running
        if lost_kv:
            request.num_computed_tokens, request.num_blocks = 16, 1
        table.add(request)
        if lost_kv:
            table.preempt(request)
    return table


def make_state(
    table: RequestTable,
    packing: str = "deadline",
    pace: Pace = PACE,
    limits: Limits = LIMITS,
    num_free_blocks: int | None = None,
    offline_enabled: bool = True,
) -> StepState:
    policy = Policy(offline_enabled=offline_enabled, packing=packing)
    return step_state(table, limits, policy, num_free_blocks, pace)


def left_ms(request: Request, pace: Pace) -> float:
    """Alg. 1 line 3."""
    return request.deadline_ms - pace.now_ms - (request.num_group_tokens_left - 1) * pace.mean_step_ms


def alone_ms(request: Request, max_num_batched_tokens: int) -> float:
    """A step with nothing else in it."""
    num_tokens = min(request.num_remaining_tokens, max_num_batched_tokens)
    features = BatchFeatures()
    if request.is_decode:
        features.add_decode(request.num_computed_tokens + 1)
    else:
        features.add_prefill(num_tokens, request.num_computed_tokens)
    return MODEL.predict_ms(features)


def can_meet(request: Request, state: StepState) -> bool:
    return left_ms(request, state.pace) >= alone_ms(request, state.limits.max_num_batched_tokens)


def _online(decodes: bool, prompt: int, computed: int, in_ms: float, group_left: int, lost_kv: bool) -> Request:
    made = make_decode(context=prompt) if decodes else make_request(prompt=prompt + 1, computed=min(computed, prompt))
    made.was_admitted = made.is_running or lost_kv
    return due(made, in_ms, group_left)


@st.composite
def held_online(draw: st.DrawFn, max_size: int = 12) -> list[Request]:
    """Running, started, preempted and waiting ones; those that have never run are due in the order of arrival."""
    sixteenths = st.integers(-16 * 200, 16 * 500).map(lambda number: number / 16)  # so that sums are exact
    dues_ms = st.one_of(sixteenths, st.sampled_from([-50.0, 0.0, 30.0, 100.0]))  # some at the same time
    draws = st.tuples(st.booleans(), prompt_lengths, computed_lengths, dues_ms, st.integers(1, 3), st.booleans())
    made = [_online(*each) for each in draw(st.lists(draws, max_size=max_size))]
    for request in made:
        request.num_in_flight_tokens = int(request.is_running and draw(st.integers(0, 9)) == 0)
    fresh = sorted((r for r in made if not r.is_running and not r.was_admitted), key=lambda r: r.deadline_ms)
    for request in fresh:
        request.num_group_tokens_left = 1
    return [request for request in made if request.is_running or request.was_admitted] + fresh
