"""What binds a batch: exact for roofline models, and of any other model as it answers."""

import random
from copy import copy
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given

from services.predictor.boosted_fit import fit_boosted
from services.predictor.window import Observation
from shared.latency.boosted import BoostedLatencyModel, Curve, Sum
from shared.latency.bottleneck import is_compute_bound, saturated_batch_size
from shared.latency.bros import BrosLatencyModel
from shared.latency.echo import EchoLatencyModel
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.latency.operators import Bottleneck
from shared.latency.roofline import NEVER_SATURATED, RooflineLatencyModel
from tests.shared.latency.shapes import make_shape, roofline
from tests.shared.latency.test_roofline import FEATURES, MODELS

LLAMA = roofline("llama3.1-8b", "a100-80g")


@dataclass(frozen=True, slots=True)
class Asked(LatencyModel):
    """Says of the roofline model only what every model says."""

    model: RooflineLatencyModel

    def predict_ms(self, features: BatchFeatures) -> float:
        return self.model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return self.model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return self.model.prefill_cost_ms(features, num_tokens, num_computed_tokens)


def decodes(count: int, context_len: int) -> BatchFeatures:
    return BatchFeatures(0, 0, count * context_len, count, 0, context_len)


@given(MODELS)
def test_gemms_are_bound_by_computing_from_the_saturated_batch_size_on(model: RooflineLatencyModel) -> None:
    size = saturated_batch_size(model)
    assert 50 < size < 400  # "less than 300 on the Ascend 910c"
    assert model.work(decodes(size, 1)).gemm.bottleneck is Bottleneck.COMPUTE
    assert model.work(decodes(size - 1, 1)).gemm.bottleneck is Bottleneck.MEMORY


def test_where_a_step_takes_long_whatever_it_holds_saturation_waits_for_that() -> None:
    """As on a CPU; a line that says the same of decodes says the same of that."""
    slow = replace(LLAMA.rates, decode_overhead_ms=200 * LLAMA.ms_per_token_compute)
    model = replace(LLAMA, rates=slow)
    assert saturated_batch_size(model) == 200
    assert not is_compute_bound(model, decodes(150, 1)) and is_compute_bound(model, decodes(250, 1))
    line = LinearLatencyModel(slow.decode_overhead_ms, 0.1, 0.0, 0.0, 0.0, 0.0, LLAMA.ms_per_token_compute)
    assert saturated_batch_size(line) == 200


def test_where_computing_takes_longer_than_all_else_one_decode_saturates() -> None:
    slow = replace(LLAMA, rates=replace(LLAMA.rates, gemm_flops_per_ms=1e6, decode_overhead_ms=0.0))
    assert saturated_batch_size(slow) == 1 and is_compute_bound(slow, decodes(1, 1))


@given(MODELS, FEATURES)
def test_a_batch_takes_what_its_operators_take(model: RooflineLatencyModel, features: BatchFeatures) -> None:
    assume(not features.is_empty)
    work = model.work(features)
    assert work.latency_ms == pytest.approx(model.predict_ms(features))
    added = work.link_ms + work.overhead_ms
    assert work.compute_bound_ms + work.memory_bound_ms + added == pytest.approx(work.latency_ms)


@given(MODELS)
def test_asking_a_roofline_model_finds_what_it_says(model: RooflineLatencyModel) -> None:
    assert saturated_batch_size(Asked(model)) == pytest.approx(saturated_batch_size(model), rel=0.01, abs=1)


def test_asking_tells_what_binds_a_batch() -> None:
    """But where both resources take about as long."""
    rng, compared = random.Random(1), {True: 0, False: 0}
    for _ in range(2_000):
        chunks = [(rng.randint(1, 2_000), rng.choice((0, 500))) for _ in range(rng.choice((0, 0, 1, 2)))]
        features = make_shape(chunks, [rng.randint(1, 4_000)] * rng.choice((0, 1, 20, 200, 400)))
        if features.is_empty:
            continue
        work = LLAMA.work(features)
        if abs(work.compute_bound_ms - work.memory_bound_ms) < 0.3 * work.latency_ms:
            continue
        says = work.bottleneck is Bottleneck.COMPUTE
        assert is_compute_bound(LLAMA, features) is is_compute_bound(Asked(LLAMA), features) is says, features
        compared[says] += 1
    assert min(compared.values()) > 100


def test_prompts_are_computed_and_long_contexts_are_read() -> None:
    """Section 3.3.3: prefill but for the shortest, decodes of few or long requests, many short decodes."""
    size = saturated_batch_size(LLAMA)
    for model in (LLAMA, Asked(LLAMA)):
        assert is_compute_bound(model, make_shape([2_000]))
        assert not is_compute_bound(model, make_shape([16]))
        assert not is_compute_bound(model, decodes(8, 100))
        assert is_compute_bound(model, decodes(2 * size, 16))
        assert not is_compute_bound(model, decodes(2 * size, 4_000))
        assert not is_compute_bound(model, BatchFeatures())


def test_a_boosted_model_bends_where_its_curve_does() -> None:
    """Whatever a step takes besides."""
    curves = {Sum.TOKENS: Curve((0, 120), (0.001, 0.1)), Sum.DECODE_KV_TOKENS: Curve((0,), (1e-4,))}
    for base in (0.5, 20.0):
        assert saturated_batch_size(BoostedLatencyModel(base, curves)) == 120


def test_a_fitted_boosted_model_bends_about_where_the_truth_does() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 448, 512)
    shapes = [decodes(size, context) for size in sizes for context in (16, 64, 256)]
    shapes += [make_shape([(tokens, before)]) for tokens in (16, 64, 128, 256, 512, 1024) for before in (0, 512)]
    fitted = fit_boosted([Observation(shape, LLAMA.predict_ms(shape)) for shape in shapes * 4])
    assert fitted is not None
    assert saturated_batch_size(fitted) == pytest.approx(saturated_batch_size(LLAMA), rel=0.2)


def test_lines_have_no_bend() -> None:
    """What any step takes is then as much as its decodes'."""
    assert saturated_batch_size(LinearLatencyModel(10.0, 0.1, 1e-3, 0.0, 0.0, 0.0, 0.25)) == 40
    assert saturated_batch_size(BrosLatencyModel(5.0, 0.5, 1e-3, 10.0, 0.4, 2e-3)) == 25
    assert saturated_batch_size(LinearLatencyModel(0.0, 0.1, 1e-3, 0.0, 0.0, 0.0, 0.25)) == 1


def test_where_decodes_cost_nothing_they_never_saturate() -> None:
    echo = EchoLatencyModel(1e-5, 0.05, 5.0, 0.001, 0.001, 0.8)
    flat = LinearLatencyModel(10.0, 0.1, 1e-3, 0.0, 0.0, 0.0, 0.0)
    assert saturated_batch_size(echo) == saturated_batch_size(flat) == NEVER_SATURATED
    assert not is_compute_bound(flat, decodes(500, 100))
    assert is_compute_bound(flat, make_shape([1_000]))


def test_asking_changes_nothing() -> None:
    features = make_shape([(100, 5)], [10, 20])
    before = copy(features)
    is_compute_bound(Asked(LLAMA), features)
    assert features == before
