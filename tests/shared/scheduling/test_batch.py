"""A batch under construction: what is added at once is what is added one by one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.echo import EchoLatencyModel
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
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
