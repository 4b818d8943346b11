"""What requests demand: the paper's figures by the data sheet, sums, and models that are asked instead."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import architecture_named
from shared.latency.bros import BrosLatencyModel
from shared.latency.demand import Demand, DemandModel, num_reads
from shared.latency.device_rates import GEMM_FLOPS_REACHED, MEMORY_REACHED
from shared.latency.devices import device_named
from shared.latency.linear import LinearLatencyModel
from tests.shared.latency.shapes import TRUTH, roofline

LLAMA, A100 = architecture_named("llama3.1-8b"), device_named("a100-80g")
LENGTHS = st.integers(1, 20_000)


def by_sheet() -> DemandModel:
    return DemandModel.of_data_sheet(LLAMA, A100)


def by_reach() -> DemandModel:
    return DemandModel.of(LLAMA, A100)


def test_figure_5() -> None:
    """512 tokens in and 256 out: 3.73; 256 in and 16,384 out: 0.096."""
    assert by_sheet().request(512, 256).density == pytest.approx(3.73, rel=0.02)
    assert by_sheet().request(256, 16_384).density == pytest.approx(0.096, rel=0.01)


def test_table_3() -> None:
    """MMLU with two tokens out shares 86.46%: 54.91. Its density does not depend on the prompts' lengths, which the
    paper does not tell: both sums grow with them."""
    mmlu = [by_sheet().request(num_tokens, 2) for num_tokens in range(300, 1500, 50)]
    assert sum(mmlu, Demand()).shared(0.8646).density == pytest.approx(54.91, rel=0.03)
    # OpenVid: 16,000 tokens out in the mean, with a deviation as large 0.05; none at all would be twice as much
    assert by_sheet().request(64, 16_000).density / 2 == pytest.approx(0.05, rel=0.05)


def test_a_prompt_computes_what_the_paper_says() -> None:
    """Comp of section 2.3: 2 p P_model + 4 p^2 H L."""
    num_tokens, hidden_size = 20_000, LLAMA.num_heads * LLAMA.head_dim
    flops = 2 * num_tokens * LLAMA.parameters + 4 * num_tokens**2 * hidden_size * LLAMA.num_layers
    compute_s = by_sheet().request(num_tokens, 0).compute_ms / 1e3
    assert compute_s * A100.half_flops_per_s == pytest.approx(flops, rel=1e-4)


def test_figure_3_in_its_order_of_magnitude() -> None:
    """Llama-3-70B on 8 GPUs: output decides; beyond 4,000 tokens of it memory binds, whatever the prompt."""
    large = DemandModel.of(architecture_named("llama3-70b"), A100, tensor_parallel=8)
    assert all(large.request(num_tokens, 10).density > 10 for num_tokens in (100, 1_000, 10_000))
    assert all(large.request(num_tokens, 8_000).density < 1 for num_tokens in (100, 1_000, 10_000))


@pytest.mark.parametrize(("prompt", "output"), [(512, 256), (256, 16_384), (1_155, 211)])
def test_what_kernels_reach_raises_densities(prompt: int, output: int) -> None:
    """They reach a smaller share of the FLOP/s than of the bandwidth; no token computes the input embedding."""
    embedding = 2 * LLAMA.head_parameters / LLAMA.parameters
    ratio = by_reach().request(prompt, output).density / by_sheet().request(prompt, output).density
    reach = MEMORY_REACHED / GEMM_FLOPS_REACHED
    assert reach * (1 - embedding) < ratio < reach


def test_shared_tokens_are_computed_once() -> None:
    alone, found = by_reach().request(1_000, 50), by_reach().request(1_000, 50, num_shared_tokens=800)
    assert found.memory_ms == alone.memory_ms
    saved_ms = 800 * by_reach().ms_per_token + 800 * 801 / 2 * by_reach().ms_per_pair
    assert alone.compute_ms - found.compute_ms == pytest.approx(saved_ms)
    assert alone.shared(saved_ms / alone.compute_ms).compute_ms == pytest.approx(found.compute_ms)
    with pytest.raises(ValueError, match="between 0 and 1"):
        alone.shared(1.1)


def test_so_many_of_a_kind_are_their_sum() -> None:
    one = Demand(3.0, 0.5)
    assert one.times(3) == one + one + one
    assert one.times(3).density == one.density


def test_what_is_shared_wholly_computes_nothing() -> None:
    assert Demand(3.0, 0.5).shared(1.0) == Demand(0.0, 0.5) and Demand(3.0, 0.5).shared(0.0) == Demand(3.0, 0.5)


def test_devices_that_share_a_model_share_its_demand() -> None:
    """Each computes and reads its part."""
    alone, shared = (DemandModel.of(LLAMA, A100, each).request(1_000, 500) for each in (1, 4))
    assert (4 * shared.compute_ms, 4 * shared.memory_ms) == pytest.approx((alone.compute_ms, alone.memory_ms))


def test_nothing_read_is_infinitely_dense() -> None:
    assert Demand(1.0, 0.0).density == math.inf
    assert num_reads(100, 10) == 10 * 100 + 10 * 10 / 2


@given(LENGTHS, LENGTHS)
def test_a_longer_output_is_less_dense(prompt: int, output: int) -> None:
    assert by_reach().request(prompt, output + 1).density < by_reach().request(prompt, output).density


@pytest.mark.parametrize("device", ["a100-80g", "h100", "a40"])
def test_a_model_that_is_asked_says_what_it_is_made_of(device: str) -> None:
    model = roofline("llama3.1-8b", device)
    asked, known = DemandModel.measured(model), DemandModel.of_roofline(model)
    assert asked.ms_per_read == pytest.approx(known.ms_per_read)
    assert asked.ms_per_pair == pytest.approx(known.ms_per_pair)
    assert asked.ms_per_token == pytest.approx(known.ms_per_token, rel=0.01)


def test_a_model_that_says_nothing_of_them_demands_nothing() -> None:
    asked = DemandModel.measured(LinearLatencyModel(5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert asked.request(1_000, 500) == Demand(0.0, 0.0)


def test_fitted_models_can_be_asked() -> None:
    """A model that is a line in what is asked of it says its coefficients; Eq. 1 with its squares says more."""
    bros = DemandModel.measured(BrosLatencyModel(5.0, 0.5, 1e-3, 2.0, 0.7, 2e-3))
    assert (bros.ms_per_token, bros.ms_per_pair, bros.ms_per_read) == pytest.approx((0.5, 1e-3, 2e-3))
    asked, truth = DemandModel.measured(LinearLatencyModel(*TRUTH)), LinearLatencyModel(*TRUTH)
    assert asked.ms_per_pair == pytest.approx(truth.prefill_pair)
    assert asked.ms_per_token > truth.prefill_token and asked.ms_per_read > truth.kv_token
