"""A batch under construction: what is added at once is what is added one by one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.echo import EchoLatencyModel
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.request_cache import HashedRequests
from shared.scheduling.limits import Limits
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import Kind, Request
from tests.shared.scheduling.factories import MODEL, make_decode, make_request

MODELS: list[LatencyModel] = [
    MODEL,
    RooflineLatencyModel.of(architecture_named("llama2-7b"), device_named("a100-40g")),
    EchoLatencyModel(1e-5, 0.05, 8.0, 0.001, 0.01, 0.7),  # by which a short decode may be free
]
contexts = st.lists(st.integers(1, 40).map(lambda blocks: 8 * blocks), max_size=12)  # half of them fill their blocks


def add_one_by_one(builder: BatchBuilder, decodes: list[Request]) -> int:
    """Up to the first that does not fit."""
    for count, request in enumerate(decodes):
        if not builder.try_decode(request, bounded=True):
            return count
    return len(decodes)


@given(
    model=st.sampled_from(MODELS),
    lens=contexts,
    budget_ms=st.one_of(st.just(math.inf), st.floats(0.0, 40.0)),
    num_blocks=st.integers(0, 8),
    most=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    prompt=st.integers(0, 6),
    lets_one_in=st.booleans(),
)
def test_bounded_decodes_are_added_as_one_by_one(
    model: LatencyModel,
    lens: list[int],
    budget_ms: float,
    num_blocks: int,
    most: tuple[int, int],
    prompt: int,
    lets_one_in: bool,
) -> None:
    decodes = [make_decode(kind=Kind.OFFLINE, context=context) for context in lens]
    later = make_request("later", Kind.OFFLINE, prompt=3)
    built = []
    for add in (add_one_by_one, BatchBuilder.add_bounded_decodes):
        limits = Limits(16, 1000, max_num_batched_tokens=most[0], max_num_seqs=most[1])
        builder = BatchBuilder(limits, model, budget_ms, num_blocks, lets_one_in=lets_one_in)
        if prompt:
            builder.try_prefill(make_request("online", prompt=prompt), bounded=False)
        num_added = add(builder, decodes)
        left = builder.latency_ms, builder.num_blocks_left, builder.num_tokens_left, builder.has_room
        has_later = builder.try_add(later, bounded=True)
        built.append((num_added, left, builder.entries, builder.features, has_later, builder.scheduled))
    assert built[0] == built[1]


def state_of(builder: BatchBuilder) -> tuple[object, ...]:
    left = builder.num_blocks_left, builder.num_tokens_left, builder.features.sums, round(builder.latency_ms, 6)
    return builder.entries, builder.scheduled, left


def filled(limits: Limits, requests: list[Request], budget_ms: float = math.inf) -> BatchBuilder:
    builder = BatchBuilder(limits, MODEL, budget_ms, 100)
    assert all(builder.try_add(request, bounded=False) for request in requests)
    return builder


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 60), st.sampled_from(["waits", "started", "decodes", "paused"])), min_size=1
    ),
    data=st.data(),
)
def test_what_is_taken_out_has_never_been_there_until_it_is_put_back(
    shapes: list[tuple[int, str]], data: st.DataObject
) -> None:
    requests = []
    for length, what in shapes[:10]:
        made = make_decode(kind=Kind.OFFLINE, context=length) if what in ("decodes", "paused") else None
        computed = length // 2 if what == "started" else 0
        requests.append(made or make_request(kind=Kind.OFFLINE, prompt=length + 1, computed=computed))
        if what == "paused":
            requests[-1].num_kept_blocks, requests[-1].num_missing_slots = requests[-1].num_blocks // 2, length
    limits = Limits(16, 1000, 10_000, max_num_seqs=len(requests), swap_ms_per_slot=0.5)
    builder, whole = filled(limits, requests), state_of(filled(limits, requests))
    index = data.draw(st.integers(0, len(requests) - 1))
    others = [request for request in requests if request is not requests[index]]
    num_tokens = builder.take_out(index, requests[index])
    assert state_of(builder) == state_of(filled(limits, others)) and builder.has_room
    for probe in (make_decode("probe"), make_decode("second")):
        assert builder.try_add(probe, bounded=False) is (probe.request_id == "probe"), "one has left"
    builder.take_out(len(others), make_decode("probe"))
    builder.put_back(index, requests[index], num_tokens)
    assert state_of(builder) == whole and not builder.has_room


@given(
    slots=st.lists(st.integers(0, 8), max_size=6),
    budget_ms=st.integers(12, 40),
    swap_ms_per_slot=st.sampled_from([0.0, 2.0, 5.0]),
)
def test_only_the_first_that_comes_back_may_take_longer_than_the_step(
    slots: list[int], budget_ms: int, swap_ms_per_slot: float
) -> None:
    builder = BatchBuilder(Limits(16, 1000, 512, 64, swap_ms_per_slot=swap_ms_per_slot), MODEL, float(budget_ms), 100)
    swap_ms = 0.0
    for num_missing in slots:
        request = make_decode(kind=Kind.OFFLINE, context=16)
        request.num_missing_slots = num_missing
        own_ms = num_missing * swap_ms_per_slot
        fits = swap_ms == 0 or own_ms == 0 or swap_ms + own_ms <= budget_ms
        has_time = builder.has_time_for(request)
        assert has_time is (builder.latency_ms + MODEL.decode_cost_ms(builder.features, 17) <= budget_ms)
        assert builder.try_add(request, bounded=True) is (fits and has_time)
        swap_ms += own_ms if fits and has_time else 0.0


@given(lens=contexts, budget_ms=st.one_of(st.just(math.inf), st.floats(0.0, 60.0)), prompt=st.integers(0, 20))
def test_as_many_decodes_as_the_whole_step_has_time_for(lens: list[int], budget_ms: float, prompt: int) -> None:
    decodes = [make_decode(kind=Kind.OFFLINE, context=context) for context in lens]
    online = [make_request(prompt=prompt)] if prompt else []
    limits = Limits(16, 1000, 512, 64)
    most = [count for count in range(len(lens) + 1) if filled(limits, online + decodes[:count]).latency_ms <= budget_ms]
    builder = filled(limits, online, budget_ms)
    assert builder.num_decodes_within(decodes, budget_ms) == max(most, default=0)
    assert builder.add_decodes_within(decodes) == max(most, default=0)


def test_of_who_begins_as_an_entry_does_only_the_rest_is_computed() -> None:
    """Unless that is taken out again; nobody finds what it computes itself."""
    hashes = hash_chain(list(range(200)), 16)
    cache = HashedRequests(BlockPool(100, 16), 16, lambda request_id: hashes)
    builder = BatchBuilder(Limits(16, 100, 200, 8), MODEL, math.inf, 100, cache)
    first, second, third = (make_request(name, Kind.OFFLINE, prompt=100) for name in "abc")
    assert builder.try_prefill(first, bounded=True, at_most=70)
    assert builder.num_computed(second) == 64 and builder.fits_whole(second)
    assert builder.try_prefill(second, bounded=True)
    assert builder.num_computed(third) == 96
    assert [entry.num_scheduled_tokens for entry in builder.entries] == [70, 36]
    assert (builder.num_tokens_left, builder.num_blocks_left) == (94, 92)
    latency_ms, features = builder.latency_ms, BatchFeatures()
    features.add_all([(70, 0), (36, 64)])
    assert latency_ms == MODEL.predict_ms(features)
    assert builder.take_out(1, second) == 36
    assert builder.num_computed(third) == 64 and (builder.num_tokens_left, builder.num_blocks_left) == (130, 95)
    builder.put_back(1, second, 36)
    assert builder.num_computed(third) == 96 and builder.latency_ms == latency_ms
    builder.round_down(100)
    assert [entry.num_scheduled_tokens for entry in builder.entries] == [70, 30]
    assert (builder.num_computed(second), builder.num_computed(third)) == (64, 80)
