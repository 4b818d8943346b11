"""Timed batches, as an executor would tell them to the predictor."""

import random
from collections.abc import Sequence
from functools import cache

from benchmarks.lab.drawn import mixed_load
from benchmarks.lab.fits import FITS
from benchmarks.lab.lab import HYGEN, Bench, Machine, System, setup_of
from services.predictor.window import Observation, SampleWindow
from services.profiler.sweep.shapes import sweep_shapes
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel

NOISE = 0.01  # sigma of the lognormal factor on each step's time
WINDOW = 4096  # samples that the predictor keeps unless told otherwise
DURATION_S, BUDGET_MS = 60.0, 50.0  # of a schedule
BOOSTED = "boosted"  # that plans of a running stack are made with


def scheduled_shapes(machine: Machine, seed: int) -> list[BatchFeatures]:
    """The batches of a minute of two online requests a second, lengths spread over three decades, and summaries
    without end, on a simulated machine."""
    return Bench(machine, mixed_load(2.0, DURATION_S, seed)).shapes(HYGEN, BUDGET_MS)


def run_samples(bench: Bench, system: System, value: float | None = None) -> list[Observation]:
    """Each step of a run of its own, timed on the bench's machine."""
    return timed(bench.shapes(system, value), setup_of(bench.machine).latency)


def sweep_samples(machine: Machine, seed: int = 0) -> list[Observation]:
    """The batches of the profiler's micro-benchmarks, timed on that machine."""
    setup, shapes = setup_of(machine), list[BatchFeatures]()
    for measure in sweep_shapes(setup.info("executor-0")):
        features = BatchFeatures()
        for chunk in measure.prefills:
            features.add_prefill(chunk.num_tokens, chunk.num_computed_tokens)
        for context_len in measure.decode_context_lens:
            features.add_decode(context_len + 1)
        shapes += [features] * measure.repeats
    return timed(shapes, setup.latency, seed=seed)


def timed(
    shapes: Sequence[BatchFeatures], truth: LatencyModel, noise: float = NOISE, seed: int = 0
) -> list[Observation]:
    """By ``truth`` times a lognormal factor with ``noise`` as its sigma; the same seed draws the same."""
    rng = random.Random(seed)
    return [Observation(shape, truth.predict_ms(shape) * rng.lognormvariate(0.0, noise)) for shape in shapes]


def window_of(observations: Sequence[Observation]) -> SampleWindow:
    """What the predictor would have kept of them."""
    window = SampleWindow(WINDOW)
    for observation in observations:
        window.add(observation.shape, observation.latency_ms)
    return window


@cache
def fitted_model(machine: Machine, name: str = BOOSTED) -> LatencyModel:
    """Of this kind, by its name in ``FITS``, fitted to what a running stack has after its first minute: the profiler's
    sweep, and the batches of a schedule, timed with noise."""
    served = timed(scheduled_shapes(machine, seed=1), setup_of(machine).latency, seed=2)
    fit, _ = FITS[name]
    model = fit(window_of([*sweep_samples(machine, seed=3), *served]).observations())
    assert model is not None, "the samples tell too little"
    return model


class FittedModels(dict[str, LatencyModel]):
    """``fitted_model`` of a machine by its kind, made when it is first asked for. Others may stand beside them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __missing__(self, kind: str) -> LatencyModel:
        self[kind] = fitted_model(self._machine, kind)
        return self[kind]
