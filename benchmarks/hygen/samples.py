"""Timed batches, as an executor would tell them to the predictor."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.hygen.bench import Bench, System
from services.predictor.window import Observation, SampleWindow
from services.profiler.sweep.shapes import sweep_shapes
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol.messages import ExecutorInfo, MeasureShape

NOISE = 0.01  # sigma of the lognormal factor on each step's time
WINDOW = 4096  # samples that the predictor keeps unless told otherwise


class Recorder:
    """A latency model that keeps the shapes of the steps that it times."""

    def __init__(self, model: LatencyModel) -> None:
        self.shapes: list[BatchFeatures] = []
        self._model = model

    def predict_ms(self, features: BatchFeatures) -> float:
        self.shapes.append(features)
        return self._model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return self._model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return self._model.prefill_cost_ms(features, num_tokens, num_computed_tokens)

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        return self._model.max_prefill_tokens(features, num_computed_tokens, budget_ms, limit)


def truth(bench: Bench) -> RooflineLatencyModel:
    """What steps take on the setting's machine, without noise."""
    machine = bench.setting.machine
    return RooflineLatencyModel.named(machine.model, machine.device, machine.tensor_parallel)


def run_samples(bench: Bench, system: System, value: float | None = None) -> list[Observation]:
    """Of each step of a run, in order."""
    recorder = Recorder(truth(bench))
    bench.phase(system, value, latency=recorder).run()
    return timed(recorder.shapes, truth(bench))


def sweep_samples(bench: Bench) -> list[Observation]:
    """Of the profiler's micro-benchmarks."""
    shapes = [shape for measure in sweep_shapes(_info(bench)) for shape in [_shape(measure)] * measure.repeats]
    return timed(shapes, truth(bench))


def windowed(observations: Sequence[Observation]) -> list[Observation]:
    """What the predictor would have kept of them."""
    window = SampleWindow(WINDOW)
    for observation in observations:
        window.add(observation.shape, observation.latency_ms)
    return window.observations()


def timed(shapes: Sequence[BatchFeatures], model: LatencyModel, seed: int = 0) -> list[Observation]:
    """With ``NOISE``; the same seed draws the same."""
    rng = random.Random(f"{seed}:samples")
    return [Observation(shape, model.predict_ms(shape) * rng.lognormvariate(0.0, NOISE)) for shape in shapes]


def _shape(measure: MeasureShape) -> BatchFeatures:
    features = BatchFeatures()
    for chunk in measure.prefills:
        features.add_prefill(chunk.num_tokens, chunk.num_computed_tokens)
    for context_len in measure.decode_context_lens:
        features.add_decode(context_len + 1)
    return features


def _info(bench: Bench) -> ExecutorInfo:
    """The executor's registration, as far as a sweep reads it."""
    replica = bench.phase(System("online-only")).executor.replica
    spec, limits = replica.spec, replica.limits
    return ExecutorInfo(
        executor_id="simulated",
        epoch="",
        pid=0,
        model=spec.model,
        engine=spec.engine,
        device=spec.device,
        profile_key=bench.setting.name,
        max_model_len=spec.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        eos_token_ids=list(spec.eos_token_ids),
    )
