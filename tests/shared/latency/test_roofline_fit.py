"""The rates of a device, found in timed batches; the kind beside linear and boosted; its record."""

import random
from collections.abc import Sequence
from dataclasses import fields

import msgspec
import pytest

from benchmarks.lab.samples import timed, window_of
from services.predictor.fit import fit_best, mean_relative_error
from services.predictor.roofline_fit import fit_roofline
from services.predictor.window import Observation
from services.profiler.simulation.setup import Machine
from services.profiler.sweep.shapes import sweep_shapes
from shared.latency.architectures import architecture_named
from shared.latency.bottleneck import is_compute_bound
from shared.latency.device_rates import DeviceRates
from shared.latency.features import BatchFeatures
from shared.latency.operators import Bottleneck
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol.profiling.latency_models import LatencyModelRecord, RooflineRates, model_record
from shared.scheduling.strategy import Strategy
from tests.shared.latency.shapes import MACHINES, make_shape, roofline, schedule_of, spec_of, varied_shapes
from tests.shared.latency.shapes import timed as linearly_timed

TOLD_APART = ("gemm_flops_per_ms", "gemm_bytes_per_ms", "prefill_attention_flops_per_ms", "attention_bytes_per_ms")


def sweep_of(model: str) -> list[BatchFeatures]:
    """What the profiler's sweep asks of such an executor, each batch as often."""
    setup = Machine(model, MACHINES[model]).setup(Strategy(), 0)
    shapes = []
    for measure in sweep_shapes(setup.info("executor-0")):
        chunks = [(chunk.num_tokens, chunk.num_computed_tokens) for chunk in measure.prefills]
        shapes += [make_shape(chunks, [length + 1 for length in measure.decode_context_lens])] * measure.repeats
    return shapes


def fitted_to(observations: Sequence[Observation], model: str, tensor_parallel: int = 1) -> RooflineLatencyModel:
    fitted = fit_roofline(observations, architecture_named(model), tensor_parallel)
    assert fitted is not None
    return fitted


@pytest.mark.parametrize("model", MACHINES)
def test_a_sweep_without_noise_tells_the_rates(model: str) -> None:
    truth, shapes = roofline(model, MACHINES[model]), sweep_of(model)
    fitted = fitted_to(timed(shapes, truth, noise=0.0), model)
    for name in TOLD_APART:
        assert getattr(fitted.rates, name) == pytest.approx(getattr(truth.rates, name), rel=0.02), name
    assert fitted.rates.prefill_overhead_ms == pytest.approx(1.0, abs=0.2)
    assert fitted.rates.decode_overhead_ms == pytest.approx(1.0, abs=0.2)
    assert fitted.saturated_batch_size == pytest.approx(truth.saturated_batch_size, abs=4)


@pytest.mark.parametrize("model", MACHINES)
def test_a_sweep_is_enough_for_a_schedule(model: str) -> None:
    """With 1% of noise in it; the paper: around 5% of error."""
    truth = roofline(model, MACHINES[model])
    fitted = fitted_to(timed(sweep_of(model), truth, noise=0.01, seed=2), model)
    shapes = schedule_of(model, seed=3)
    assert mean_relative_error(fitted, timed(shapes, truth, noise=0.0)) < 0.005
    batches = [shape for shape in shapes[::7] if _is_clear(truth, shape)]
    assert all(is_compute_bound(fitted, shape) is is_compute_bound(truth, shape) for shape in batches)


def _is_clear(truth: RooflineLatencyModel, shape: BatchFeatures) -> bool:
    work = truth.work(shape)
    return abs(work.compute_bound_ms - work.memory_bound_ms) > 0.1 * work.latency_ms


def test_outliers_are_left_out() -> None:
    truth = roofline("llama2-7b", "a100-40g")
    observations = timed(sweep_of("llama2-7b") * 3, truth, noise=0.01, seed=2)
    spoiled = [
        each._replace(latency_ms=each.latency_ms * 6) if n % 15 == 0 else each for n, each in enumerate(observations)
    ]
    assert mean_relative_error(fitted_to(spoiled, "llama2-7b"), observations) < 0.012


def test_a_resource_that_no_batch_waits_for_is_fast_enough() -> None:
    """Decodes read; how fast they would compute is told by none. Their attention stays bound by memory."""
    truth = roofline("llama2-7b", "a100-40g")
    fitted = fitted_to(timed(sweep_of("llama2-7b"), truth, noise=0.0), "llama2-7b")
    assert 0 < fitted.rates.decode_attention_flops_per_ms <= truth.rates.decode_attention_flops_per_ms
    work = fitted.work(make_shape((), [500] * 20))
    assert work.decode_attention.bottleneck is Bottleneck.MEMORY
    small = [shape for shape in sweep_of("llama2-7b") if shape.prefill_tokens + shape.decode_requests <= 64]
    fitted = fitted_to(timed(small, truth, noise=0.0), "llama2-7b")
    assert fitted.saturated_batch_size > 64
    assert mean_relative_error(fitted, timed(small, truth, noise=0.0)) < 0.01


def test_links_are_told_apart_where_a_model_is_shared() -> None:
    rng, truth = random.Random(4), roofline("llama3.1-8b", "a40", 4)
    shapes = [make_shape((), [rng.randint(1, 2_000)] * 2**size) for size in range(9) for _ in range(20)]
    shapes += [make_shape([(2**size, rng.choice((0, 500)))]) for size in range(2, 12) for _ in range(20)]
    fitted = fitted_to(timed(shapes, truth, noise=0.0), "llama3.1-8b", 4)
    assert fitted.rates.link_bytes_per_ms == pytest.approx(truth.rates.link_bytes_per_ms, rel=0.1)
    assert mean_relative_error(fitted, timed(shapes, truth, noise=0.0)) < 0.005


def test_too_little_is_told_as_such() -> None:
    truth, shapes = roofline("llama2-7b", "a100-40g"), sweep_of("llama2-7b")
    llama = architecture_named("llama2-7b")
    decodes = [shape for shape in shapes if not shape.prefill_requests]
    assert fit_roofline(timed(decodes, truth), llama) is None
    assert fit_roofline(timed(shapes[:10], truth), llama) is None
    assert fit_roofline(timed(shapes, truth), llama, tensor_parallel=3) is None


@pytest.mark.parametrize("wanted", ["auto", "roofline"])
def test_the_predictor_takes_what_predicts_best(wanted: str) -> None:
    """On a machine that is a roofline; one that is a line keeps its line unless another is asked for."""
    truth = roofline("qwen-14b", "a40")
    steps = window_of(timed(schedule_of("qwen-14b", seed=1), truth, seed=2)).observations()
    fitted = fit_best(steps, prediction_limit_us=1e6, wanted=wanted, spec=spec_of("qwen-14b"))
    assert fitted is not None
    assert [candidate.kind for candidate in fitted.candidates] == ["linear", "boosted", "roofline"]
    by_kind = {candidate.kind: candidate.mape for candidate in fitted.candidates}
    assert by_kind["roofline"] < 0.009 < by_kind["linear"]
    assert wanted == "auto" or isinstance(fitted.model, RooflineLatencyModel)
    lines = linearly_timed(varied_shapes(random.Random(1), 600), random.Random(1), noise=0.03)
    of_line = fit_best(lines, wanted=wanted, spec=spec_of("qwen-14b"))
    assert of_line is not None
    assert isinstance(of_line.model, RooflineLatencyModel) is (wanted == "roofline")


def test_without_the_architecture_there_is_none() -> None:
    truth = roofline("llama2-7b", "a100-40g")
    spec = msgspec.structs.replace(spec_of("llama2-7b"), architecture=None)
    fitted = fit_best(timed(sweep_of("llama2-7b"), truth), wanted="roofline", spec=spec)
    assert fitted is not None
    assert [candidate.kind for candidate in fitted.candidates] == ["linear", "boosted"]


def test_the_record_is_the_model() -> None:
    truth = roofline("llama3.1-8b", "h100", 2)
    record = LatencyModelRecord("key", model_record(truth), 10, 0.01, 1.0)
    again = msgspec.json.decode(msgspec.json.encode(record), type=LatencyModelRecord)
    assert again.kind == "roofline" and again.latency_model() == truth
    shape = make_shape([(300, 20)], [40, 900])
    assert truth.scaled(2.0).predict_ms(shape) == pytest.approx(2 * truth.predict_ms(shape))
    alone = msgspec.structs.replace(again, model=RooflineRates(truth.architecture, _without_link(truth.rates), 2))
    with pytest.raises(ValueError, match="give link_bytes_per_ms"):
        alone.latency_model()


def _without_link(rates: DeviceRates) -> DeviceRates:
    return DeviceRates(*(getattr(rates, each.name) for each in fields(rates) if each.name != "link_bytes_per_ms"))


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_are_positive(value: float) -> None:
    with pytest.raises(ValueError, match="gemm_bytes_per_ms"):
        DeviceRates(1.0, 1.0, 1.0, value, 1.0, 0.0, 0.0)
