"""How large steps are chosen to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks
from shared.scheduling.step_sizes import (
    LARGEST,
    LARGEST_ON_CPU,
    NEAR_BEST,
    PROMPT_TOKENS,
    USUAL,
    StepSizes,
    chosen_sizes,
    is_news,
    largest_sizes,
)

KV_TOKENS = 1 << 20


def line(base: float, prefill_token: float, decode: float, kv_token: float = 0.0) -> LinearLatencyModel:
    return LinearLatencyModel(base, prefill_token, kv_token, 0.0, 0.0, 0.0, decode)


def test_where_a_token_costs_as_much_in_any_step_the_smallest_are_chosen() -> None:
    assert chosen_sizes(line(0.0, 1.0, 1.0), LARGEST, KV_TOKENS) == USUAL


def test_where_tokens_cost_nothing_the_largest_are_chosen() -> None:
    assert chosen_sizes(line(10.0, 0.0, 0.0), LARGEST, KV_TOKENS) == LARGEST
    assert chosen_sizes(line(10.0, 0.0, 0.0), LARGEST_ON_CPU, KV_TOKENS) == LARGEST_ON_CPU


def test_a_fixed_cost_is_shared_by_as_many_tokens_as_make_it_small() -> None:
    # At 8192 tokens each takes 1.0061 ms; 5% more is 1.0564 ms, which 1024 tokens (1.0488 ms) keep and 512 do not.
    assert chosen_sizes(line(50.0, 1.0, 0.0), LARGEST, KV_TOKENS).max_num_batched_tokens == 1024
    # At 1024 decodes each takes 2.0488 ms; 5% more is 2.1513 ms, which 512 (2.0977 ms) keep and 256 (2.195) do not.
    assert chosen_sizes(line(50.0, 0.0, 2.0), LARGEST, KV_TOKENS).max_num_seqs == 512


def test_prompts_are_compared_with_the_attention_within_them() -> None:
    """As above, where a token costs by its pairs alone: each has half of a prompt before it."""
    pairs = LinearLatencyModel(50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1 / (PROMPT_TOKENS / 2))
    assert chosen_sizes(pairs, LARGEST, KV_TOKENS).max_num_batched_tokens == 1024


def test_a_decode_reads_its_own_token_however_small_the_cache() -> None:
    """As above, with half of a decode's cost that token's."""
    assert chosen_sizes(line(50.0, 0.0, 1.0, kv_token=1.0), LARGEST, 1).max_num_seqs == 512


def test_there_are_no_more_requests_than_tokens_in_a_step() -> None:
    assert chosen_sizes(line(10.0, 1.0, 0.0), LARGEST, KV_TOKENS) == StepSizes(512, 512)


def test_decodes_that_share_a_small_cache_read_less_each() -> None:
    model = line(10.0, 0.0, 0.0, kv_token=0.01)  # 5.12 ms for the context of each, where there is room
    assert chosen_sizes(model, LARGEST, KV_TOKENS).max_num_seqs == 256
    assert chosen_sizes(model, LARGEST, 4096).max_num_seqs == LARGEST.max_num_seqs


def test_what_is_slower_when_large_stays_small() -> None:
    model = LinearLatencyModel(10.0, 1.0, 0.0, 1e-3, 0.0, 0.0, 1.0)  # caches that overflow
    assert chosen_sizes(model, LARGEST, KV_TOKENS).max_num_batched_tokens == USUAL.max_num_batched_tokens


@pytest.mark.parametrize(
    ("model", "device", "num_tokens"),
    [("llama2-7b", "a100-40g", 512), ("llama2-7b", "h100", 1024), ("yi-34b", "a100-80g", 512)],
)
def test_a_named_device_saturates_where_its_roofline_bends(model: str, device: str, num_tokens: int) -> None:
    architecture, gpu = architecture_named(model), device_named(device)
    roofline = RooflineLatencyModel.of(architecture, gpu)
    num_kv_tokens = num_kv_blocks(architecture, gpu, 1, 16) * 16
    assert chosen_sizes(roofline, LARGEST, num_kv_tokens).max_num_batched_tokens == num_tokens


@given(
    base=st.floats(0, 1e3),
    token=st.floats(1e-3, 10),
    decode=st.floats(1e-3, 10),
    most=st.tuples(st.integers(1, 20_000), st.integers(1, 2_000)),
)
def test_a_token_takes_hardly_longer_than_in_the_largest_step(
    base: float, token: float, decode: float, most: tuple[int, int]
) -> None:
    model, largest = line(base, token, decode), StepSizes(*most)
    chosen = chosen_sizes(model, largest, KV_TOKENS)
    assert 1 <= chosen.max_num_seqs <= chosen.max_num_batched_tokens
    assert chosen.max_num_batched_tokens <= largest.max_num_batched_tokens
    assert chosen.max_num_seqs <= largest.max_num_seqs

    def token_ms(size: int) -> float:
        return model.predict_ms(BatchFeatures(size, 1)) / size

    within = token_ms(largest.max_num_batched_tokens) * (1 + NEAR_BEST)
    assert token_ms(chosen.max_num_batched_tokens) <= within * (1 + 1e-9)


def test_what_is_given_stands() -> None:
    assert LARGEST.but(100, None) == StepSizes(100, LARGEST.max_num_seqs)
    assert LARGEST.but(0, 7) == StepSizes(LARGEST.max_num_batched_tokens, 7)


def test_a_device_has_the_largest_sizes_of_its_kind() -> None:
    assert largest_sizes("cpu-intel-r-xeon-r-processor-2t") == LARGEST_ON_CPU
    assert largest_sizes("cuda-nvidia-h200") == largest_sizes("1xa100-40g-llama2-7b-x1") == LARGEST


def test_half_and_twice_are_no_news() -> None:
    standing = StepSizes(1024, 512)
    assert not is_news(StepSizes(512, 1024), standing)
    assert is_news(StepSizes(256, 512), standing) and is_news(StepSizes(1024, 2048), standing)
