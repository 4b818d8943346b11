"""Of a sweep that goes on to large steps, a fitted model knows where they stop paying."""

import pytest
from msgspec.structs import replace

from benchmarks.lab.samples import timed
from services.predictor.fit import fit_best
from services.profiler.simulation.setup import Machine
from services.profiler.sweep.shapes import sweep_shapes
from shared.latency.features import BatchFeatures
from shared.protocol.profiling.measurements import MeasureShape
from shared.scheduling.step_sizes import LARGEST, chosen_sizes, is_news
from shared.scheduling.strategy import Strategy


def features_of(shape: MeasureShape) -> BatchFeatures:
    features = BatchFeatures()
    for chunk in shape.prefills:
        features.add_prefill(chunk.num_tokens, chunk.num_computed_tokens)
    for context_len in shape.decode_context_lens:
        features.add_decode(context_len + 1)
    return features


@pytest.mark.parametrize(
    ("model", "device", "num_tokens"), [("llama2-7b", "a100-40g", 512), ("llama2-7b", "h100", 1024)]
)
def test_the_fitted_model_asks_for_the_sizes_that_the_device_does(model: str, device: str, num_tokens: int) -> None:
    setup = Machine(model, device).setup(Strategy(), seed=0)
    info = replace(setup.info("executor-0"), largest=LARGEST)
    shapes = [features_of(shape) for shape in sweep_shapes(info) for _ in range(shape.repeats)]
    fitted = fit_best(timed(shapes, setup.latency), None, 5.0, "auto", setup.spec)
    assert fitted is not None
    chosen = chosen_sizes(fitted.model, LARGEST, info.num_kv_tokens)
    assert chosen.max_num_batched_tokens == num_tokens
    assert not is_news(chosen, chosen_sizes(setup.latency, LARGEST, info.num_kv_tokens))


def test_the_simulator_chooses_what_is_not_given() -> None:
    def sizes(**given: int | None) -> tuple[int, int]:
        limits = Machine("llama2-7b", "h100", **given).setup(Strategy(), seed=0).limits  # type: ignore[arg-type]
        return limits.max_num_batched_tokens, limits.max_num_seqs

    assert sizes() == (512, 256)
    assert sizes(max_num_batched_tokens=None, max_num_seqs=None) == (1024, 1024)
    assert sizes(max_num_batched_tokens=700, max_num_seqs=None) == (700, 512)
    assert sizes(max_num_batched_tokens=None, max_num_seqs=9) == (1024, 9)
