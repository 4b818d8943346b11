"""Makers of batch shapes, of samples that a known linear model times, and of roofline models."""

import random
from collections.abc import Iterable
from functools import cache

from benchmarks.lab.samples import scheduled_shapes
from services.predictor.window import Observation
from services.profiler.simulation.setup import Machine
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.features import BatchFeatures
from shared.latency.linear import Coefficients, LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol.executors import EngineSpec
from shared.scheduling.strategy import Strategy

MACHINES = {"llama2-7b": "a100-40g", "qwen-14b": "a40", "llama3.1-8b": "h100"}
TRUTH: Coefficients = (25.0, 0.8, 2e-3, 3e-4, 2e-8, 1.5, 1.2, 2e-4)
DRIFTED: Coefficients = (40.0, 1.3, 2e-3, 3e-4, 2e-8, 1.5, 1.2, 2e-4)


def make_shape(chunks: Iterable[tuple[int, int] | int] = (), contexts: Iterable[int] = ()) -> BatchFeatures:
    """``chunks``: tokens, or tokens and computed tokens, of each prefill; ``contexts``: KV that each decode reads."""
    features = BatchFeatures()
    for chunk in chunks:
        features.add_prefill(*(chunk if isinstance(chunk, tuple) else (chunk, 0)))
    for context_len in contexts:
        features.add_decode(context_len)
    return features


@cache
def schedule_of(model: str, seed: int) -> list[BatchFeatures]:
    """The batches of a minute on its machine."""
    return scheduled_shapes(Machine(model, MACHINES[model]), seed)


def spec_of(model: str) -> EngineSpec:
    """Of an executor on its machine."""
    return Machine(model, MACHINES[model]).setup(Strategy(), 0).spec


def predict(coefficients: Coefficients, shape: BatchFeatures) -> float:
    return LinearLatencyModel(*coefficients).predict_ms(shape)


def varied_shapes(rng: random.Random, count: int) -> list[BatchFeatures]:
    shapes = []
    for number in range(count):
        n_p = 0 if number % 3 == 0 else rng.randint(1, 4)
        n_d = 0 if number % 3 == 1 else rng.randint(1, 64)
        chunks = [(rng.choice((8, 32, 128, 512)), rng.choice((0, 0, 64, 1024))) for _ in range(n_p)]
        shapes.append(make_shape(chunks, [rng.choice((16, 128, 512, 2000)) for _ in range(n_d)]))
    return shapes


def timed(
    shapes: list[BatchFeatures], rng: random.Random, noise: float, truth: Coefficients = TRUTH
) -> list[Observation]:
    return [Observation(shape, predict(truth, shape) * rng.gauss(1.0, noise)) for shape in shapes]


def roofline(model: str, device: str, tensor_parallel: int = 1) -> RooflineLatencyModel:
    """Raises ValueError that lists the known names."""
    return RooflineLatencyModel.of(architecture_named(model), device_named(device), tensor_parallel)
