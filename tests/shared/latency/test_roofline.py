"""Roofline models: monotone, marginal costs that are differences, memory that adds up, names that are known."""

from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import ARCHITECTURES, architecture_named
from shared.latency.devices import DEVICES, device_named
from shared.latency.features import BatchFeatures
from shared.latency.roofline import MEMORY_SHARE, RooflineLatencyModel, num_kv_blocks, swap_ms_per_slot
from tests.shared.latency.shapes import make_shape, roofline

MODELS = st.builds(
    roofline, st.sampled_from(sorted(ARCHITECTURES)), st.sampled_from(sorted(DEVICES)), st.just(2)
) | st.just(roofline("llama2-7b", "a100-40g"))
FEATURES = st.builds(
    lambda chunks, contexts: make_shape(chunks, contexts),
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 8192)), max_size=4),
    st.lists(st.integers(2, 4096), max_size=64),
)
CONTEXTS = st.integers(0, 8192)
# Published sizes, in billions of parameters.
PUBLISHED = {
    "llama2-7b": 6.74,
    "llama3.1-8b": 8.03,
    "qwen-14b": 14.17,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7,
    "mistral-7b": 7.24,
    "yi-34b": 34.39,
    "opt-13b": 12.85,
    "opt-30b": 29.97,
    "llama3-70b": 70.55,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sizes_are_the_published_ones(name: str) -> None:
    assert ARCHITECTURES[name].parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.005)


@given(MODELS, FEATURES, st.integers(2, 8192))
def test_a_decode_costs_the_difference(model: RooflineLatencyModel, features: BatchFeatures, context: int) -> None:
    after = copy(features)
    after.add_decode(context)
    cost = model.decode_cost_ms(features, context)
    assert cost > 0
    assert model.predict_ms(features) + cost == pytest.approx(model.predict_ms(after))


@given(MODELS, FEATURES, st.integers(1, 8192), CONTEXTS)
def test_a_chunk_costs_the_difference(
    model: RooflineLatencyModel, features: BatchFeatures, tokens: int, context: int
) -> None:
    after = copy(features)
    after.add_prefill(tokens, context)
    cost = model.prefill_cost_ms(features, tokens, context)
    assert model.predict_ms(features) + cost == pytest.approx(model.predict_ms(after))
    assert 0 < cost < model.prefill_cost_ms(features, tokens + 1, context)


@given(MODELS, FEATURES, CONTEXTS, st.floats(0, 200), st.integers(0, 4096))
def test_the_longest_chunk_is_the_longest(
    model: RooflineLatencyModel, features: BatchFeatures, context: int, budget_ms: float, limit: int
) -> None:
    tokens = model.max_prefill_tokens(features, context, budget_ms, limit)
    assert 0 <= tokens <= limit
    assert tokens == 0 or model.prefill_cost_ms(features, tokens, context) <= budget_ms
    assert tokens == limit or model.prefill_cost_ms(features, tokens + 1, context) > budget_ms


def test_the_chunks_of_a_prompt_attend_to_all_of_it() -> None:
    """Their attention computes what one step over the whole prompt would."""
    model = roofline("llama2-7b", "a100-40g")
    whole, parts = BatchFeatures(), [BatchFeatures() for _ in range(8)]
    whole.add_prefill(4096, 0)
    for number, part in enumerate(parts):
        part.add_prefill(512, 512 * number)
    assert sum(part.prefill_pairs for part in parts) == whole.prefill_pairs
    last, first = model.predict_ms(parts[-1]), model.predict_ms(parts[0])
    assert last - first == pytest.approx(512 * 3584 * model.ms_per_pair)
    assert 1.1 * first < last < 1.3 * first


@pytest.mark.parametrize(
    ("model", "device", "tp", "mixed_ms", "decode_ms", "decodes_ms"),
    [
        ("llama2-7b", "a100-40g", 1, 44.10769366145931, 0.44849613020914103, 12.478756836012861),
        ("llama3-70b", "a100-80g", 8, 47.47290824886005, 0.13312829800430115, 13.396588612718654),
        ("opt-13b", "a40", 2, 91.63759746066846, 0.8203637239229453, 26.434399386973183),
    ],
)
def test_a_named_gpu_takes_what_it_always_took(
    model: str, device: str, tp: int, mixed_ms: float, decode_ms: float, decodes_ms: float
) -> None:
    """Figures that were made with it hold on."""
    named, mixed = roofline(model, device, tp), make_shape([(300, 1000), 40], [700] * 50)
    assert named.predict_ms(mixed) == pytest.approx(mixed_ms, rel=1e-12)
    assert named.decode_cost_ms(mixed, 900) == pytest.approx(decode_ms, rel=1e-12)
    assert named.predict_ms(make_shape((), [500] * 4)) == pytest.approx(decodes_ms, rel=1e-12)


@given(FEATURES, st.integers(1, 4096), st.integers(1, 4096), st.tuples(st.floats(0, 50), st.floats(0, 50)))
def test_a_step_with_both_phases_has_the_longer_overhead(
    features: BatchFeatures, tokens: int, context: int, overheads_ms: tuple[float, float]
) -> None:
    """And what is added costs what the step takes longer for it."""
    named = roofline("llama2-7b", "a100-40g")
    prefill_ms, decode_ms = overheads_ms
    rates = replace(named.rates, prefill_overhead_ms=prefill_ms, decode_overhead_ms=decode_ms)
    model = replace(named, rates=rates)
    assert model.overhead_ms(1, 0) == prefill_ms and model.overhead_ms(0, 1) == decode_ms
    assert model.overhead_ms(2, 3) == max(overheads_ms)
    with_chunk, with_decode = copy(features), copy(features)
    with_chunk.add_prefill(tokens, context)
    with_decode.add_decode(context)
    before_ms = model.predict_ms(features)
    assert before_ms + model.prefill_cost_ms(features, tokens, context) == pytest.approx(model.predict_ms(with_chunk))
    assert before_ms + model.decode_cost_ms(features, context) == pytest.approx(model.predict_ms(with_decode))


def test_an_empty_batch_takes_no_time() -> None:
    assert roofline("yi-34b", "h200").predict_ms(BatchFeatures()) == 0.0


@pytest.mark.parametrize("device", DEVICES)
def test_one_decode_reads_the_weights_and_a_long_prompt_computes(device: str) -> None:
    figures, model = DEVICES[device], roofline("llama2-7b", device)
    weight_bytes = ARCHITECTURES["llama2-7b"].parameters * 2
    assert model.predict_ms(BatchFeatures(0, 0, 100, 1)) > weight_bytes * 0.97 / figures.memory_bytes_per_s * 1e3
    flops = 2 * ARCHITECTURES["llama2-7b"].parameters * 4096 * 0.97
    assert model.predict_ms(make_shape([4096])) > flops / figures.half_flops_per_s * 1e3


def test_more_gpus_take_less_time_but_not_half() -> None:
    batch = make_shape([2048], [1000] * 40)
    alone, shared = (roofline("yi-34b", "a100-80g", tp).predict_ms(batch) for tp in (1, 2))
    assert alone / 2 < shared < alone
    slow_link = replace(device_named("a100-80g"), link_bytes_per_s=10e9)
    assert RooflineLatencyModel.of(architecture_named("yi-34b"), slow_link, 2).predict_ms(batch) > shared


@pytest.mark.parametrize(
    ("model", "device", "tp", "stages"),
    [("llama2-7b", "a100-40g", 1, 1), ("llama3.1-8b", "h100", 4, 1), ("yi-34b", "a40", 1, 4), ("yi-34b", "a40", 2, 2)],
)
def test_blocks_and_weights_fill_the_memory(model: str, device: str, tp: int, stages: int) -> None:
    architecture, gpu = architecture_named(model), device_named(device)
    blocks = num_kv_blocks(architecture, gpu, tp, 16, stages)
    block_bytes = architecture.kv_bytes_per_token * 16 / (tp * stages)
    weights = architecture.parameters * 2 / (tp * stages)
    assert blocks * block_bytes + weights <= gpu.memory_bytes * MEMORY_SHARE < (blocks + 1) * block_bytes + weights


def test_each_gpu_copies_its_own_part_of_a_slot() -> None:
    gpu = device_named("a100-80g")
    whole, of_heads, of_layers = (
        swap_ms_per_slot(architecture_named("yi-34b"), gpu, *each) for each in ((), (4,), (1, 4))
    )
    assert of_heads == of_layers == whole / 4


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_a_slot_goes_to_the_host_by_what_the_link_reaches(device: str) -> None:
    """Of PCIe's rate, four fifths."""
    architecture, gpu = architecture_named("llama2-7b"), device_named(device)
    slot_bytes = 2 * 2 * 32 * 32 * 128  # keys and values in halves, layers, heads, their size
    swapped_ms = swap_ms_per_slot(architecture, gpu)
    assert swapped_ms == pytest.approx(slot_bytes / (0.8 * gpu.host_bytes_per_s) * 1e3)


def test_kv_heads_are_repeated_where_there_are_too_few() -> None:
    per_token = [roofline("llama3.1-8b", "h200", tp).ms_per_kv_token for tp in (4, 8, 16)]
    assert per_token[0] > per_token[1] == per_token[2]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'gpt'; known: llama2-7b, llama3.1-8b, qwen-14b"):
        roofline("gpt", "a40")
    with pytest.raises(ValueError, match=r"unknown device 'tpu'; known: a100-40g, a100-80g, a40, h100, h200"):
        roofline("yi-34b", "tpu")
    with pytest.raises(ValueError, match="cannot be shared by 3 GPUs"):
        roofline("llama2-7b", "a40", 3)
    with pytest.raises(ValueError, match="share it among more GPUs"):
        num_kv_blocks(architecture_named("yi-34b"), device_named("a40"), 1, 16)
