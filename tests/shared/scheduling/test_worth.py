"""What a change earns and evicts, against a slow reader's account of it."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from shared.latency.linear import LinearLatencyModel
from shared.scheduling.kv.request_cache import Found
from shared.scheduling.limits import Limits
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.kv_aware.worth import Worth
from shared.scheduling.policy import Benefit, Policy
from shared.scheduling.request import Request
from tests.shared.scheduling.factories import EXACT, CacheOf, held_offline, make_request, make_table, step_state
from tests.shared.scheduling.naive_batch import NaiveBatch
from tests.shared.scheduling.naive_kv_aware import NaiveWorth

LIMITS = Limits(16, 4000, 300, 64)
FREE_OF_COST = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)


@given(
    offline=st.lists(held_offline, min_size=1, max_size=6),
    more_tokens=st.integers(0, 20),
    cached=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=6, max_size=6),
    online_prompt=st.integers(0, 40),
    free=st.integers(1, 40),
    wanted=st.tuples(st.integers(0, 40), st.integers(0, 4)),
    budget_ms=st.sampled_from([20.0, 60.0, math.inf]),
    model=st.sampled_from([EXACT, EXACT, FREE_OF_COST]),
    benefit=st.sampled_from([Benefit(1.0, 0.5), Benefit(2.0, 4.0), Benefit(1.0, 64.0)]),
)
def test_a_change_is_worth_its_tokens_less_those_that_it_evicts(
    offline: list[Request],
    more_tokens: int,
    cached: list[tuple[int, int]],
    online_prompt: int,
    free: int,
    wanted: tuple[int, int],
    budget_ms: float,
    model: LinearLatencyModel,
    benefit: Benefit,
) -> None:
    found = {}
    for request, (num_cached, num_held) in zip(offline, cached, strict=False):
        request.max_total_tokens = request.num_tokens + more_tokens
        num_cached = min(num_cached, (request.num_tokens - 1) // 16)
        found[request.request_id] = Found(16 * num_cached, min(num_held, num_cached))
    policy = Policy(budget_ms, benefit=benefit)
    state = step_state(make_table(*offline), LIMITS, policy, free)
    state = dataclasses.replace(state, model=model, num_wanted_blocks=wanted[0], cache=CacheOf(found))
    builder = BatchBuilder(LIMITS, model, budget_ms, free, state.cache)
    batch = NaiveBatch(state, budget_ms, free, LIMITS.max_num_seqs)
    if online_prompt:
        online = make_request(prompt=online_prompt)
        assert builder.try_add(online, bounded=True) is batch.add(online)
    worth, naive = Worth(builder, state), NaiveWorth(batch, max(0, wanted[0] - wanted[1]))
    worth.reuse(wanted[1])
    assert worth.punishes is (naive.num_wanted > 0)
    for request in offline:
        assert worth.of_block(request) == naive.of_block(request)
        assert worth.of_losing(request) == benefit.prefill * request.num_computed_tokens
        if request.is_decode:
            change = worth.of_decode(request)
            assert (change.request, change.num_tokens, change.rate) == (request, 1, naive.rate(request, 1))
            continue
        assert worth.pays(request) is naive.pays(request)
        num_tokens, chunk = batch.longest(request), worth.of_chunk(request)
        assert (chunk is not None) is (num_tokens > 0)
        if chunk is not None:
            expected = (request, num_tokens, naive.rate(request, num_tokens))
            assert (chunk.request, chunk.num_tokens, chunk.rate) == expected
