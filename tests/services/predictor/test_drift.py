"""A machine that becomes slower while it serves: seen, told, and modelled anew."""

import random

import pytest

from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.predictor.watched_kind import WatchedKind
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.features import BatchFeatures
from shared.protocol import subjects
from shared.protocol.profiling.latency_models import LatencyModelRecord, model_record
from shared.protocol.profiling.measurements import LatencySample
from tests.services.profiler.profiling import KEY, model_of, running, until
from tests.shared.latency.shapes import roofline, schedule_of

GPU = roofline("llama2-7b", "a100-40g")
NOISE = 0.02
SLOWDOWN = 1.3


class SimulatedExecutor:
    """The batches of a simulated schedule, one after another, and a sample of each to the predictor."""

    def __init__(self, bus: Bus) -> None:
        self.factor = 1.0  # times as slow
        self.steps = 0
        self._bus = bus
        self._shapes = schedule_of("llama2-7b", seed=1)
        self._rng = random.Random(2)

    async def step(self) -> tuple[BatchFeatures, float]:
        shape = self._shapes[self.steps % len(self._shapes)]
        self.steps += 1
        latency_ms = self.factor * GPU.predict_ms(shape) * self._rng.lognormvariate(0, NOISE)
        sample = LatencySample("executor-0", KEY, self.steps, shape, latency_ms)
        await self._bus.publish(subjects.sample("executor-0"), sample)
        await self._bus.flush()
        return shape, latency_ms


def predictor(bus: Bus) -> Predictor:
    return Predictor(bus, PredictorSettings(refit_interval_s=0.1, min_samples=100), SystemClock())


async def test_a_throttled_gpu_is_noticed_and_modelled_anew(bus: Bus) -> None:
    executor, service = SimulatedExecutor(bus), predictor(bus)
    async with running(service):
        for _ in range(600):
            await executor.step()
        await until(lambda: service.details()["samples"] == executor.steps)
        before = await model_of(bus)
        assert service.details()["drifts"] == 0 and before.drifts == 0

        executor.factor = SLOWDOWN
        slowed_at = executor.steps
        while service.details()["drifts"] == 0:
            await executor.step()
            assert executor.steps < slowed_at + 100
        assert service.details()["drift_ratio"] == pytest.approx(SLOWDOWN, rel=0.05)
        while (after := await model_of(bus)).drifts == 0:
            await executor.step()
            assert executor.steps < slowed_at + 2000
        assert after.drifts == 1 and after.drift_ratio == pytest.approx(SLOWDOWN, rel=0.05)
        assert after.drifted_at_s is not None and after.fitted_at_s >= after.drifted_at_s
        fresh = [await executor.step() for _ in range(200)]
        await until(lambda: service.details()["samples"] == executor.steps)
        assert service.details()["drifts"] == 1
    old, new = (record.latency_model() for record in (before, after))
    errors = [
        sum(abs(model.predict_ms(shape) / latency_ms - 1) for shape, latency_ms in fresh) / len(fresh)
        for model in (old, new)
    ]
    assert errors[0] > 0.2 and errors[1] < 0.03


async def test_drifts_outlive_the_predictor(bus: Bus) -> None:
    executor, first, second = SimulatedExecutor(bus), predictor(bus), predictor(bus)
    async with running(first):
        for _ in range(600):
            await executor.step()
        await until(lambda: first.details()["models"] == 1)
        executor.factor = 0.6
        while (await model_of(bus)).drifts == 0:
            await executor.step()
            assert executor.steps < 2000
    async with running(second):
        assert second.details()["drifts"] == 1
        assert second.details()["drift_ratio"] == pytest.approx(0.6, rel=0.05)


def test_a_sweep_that_is_told_again_moves_no_model_by_itself() -> None:
    """As after a restart, when the machine has drifted since it was measured."""
    kind, shape = WatchedKind(4096), schedule_of("llama2-7b", seed=1)[0]
    kind.publish(LatencyModelRecord(KEY, model_record(GPU.scaled(SLOWDOWN)), 100, NOISE, 1.0), 1)
    kind.add(shape, GPU.predict_ms(shape), is_live=False)
    assert not kind.has_news and len(kind.window) == 1
    kind.add(shape, SLOWDOWN * GPU.predict_ms(shape), is_live=True)
    assert kind.has_news


def test_a_sweep_that_goes_on_improves_what_was_made_of_its_beginning() -> None:
    """Until live steps tell more of the machine."""
    kind, shape = WatchedKind(4096), schedule_of("llama2-7b", seed=1)[0]
    for is_first in (True, False):
        kind.add(shape, GPU.predict_ms(shape), is_live=False)
        assert kind.has_news
        kind.has_news = False
        kind.publish(LatencyModelRecord(KEY, model_record(GPU), 100 + is_first, NOISE, 1.0), 1)
    kind.add(shape, GPU.predict_ms(shape), is_live=True)
    kind.has_news = False
    kind.add(shape, GPU.predict_ms(shape), is_live=False)
    assert not kind.has_news


def test_a_sweep_of_the_machine_that_has_drifted_is_taken_as_it_is() -> None:
    """Its shapes say nothing of what runs, so that none of them counts towards a drift; but they are as slow."""
    kind, shapes = WatchedKind(4096), schedule_of("llama2-7b", seed=1)[:200]
    kind.publish(LatencyModelRecord(KEY, model_record(GPU), 100, NOISE, 1.0), 1)

    def measure(shape: BatchFeatures, factor: float, is_live: bool) -> bool:
        """Whether that is a drift."""
        latency_ms = factor * GPU.predict_ms(shape)
        kind.add(shape, latency_ms, is_live)
        return is_live and kind.watch(shape, latency_ms, 1.0) is not None

    assert not any(measure(shape, 1.0, is_live) for shape in shapes[:100] for is_live in (True, False))
    while not any(measure(shape, SLOWDOWN, is_live) for shape in shapes[100:] for is_live in (True, False, False)):
        pass
    assert kind.drift_ratio == pytest.approx(SLOWDOWN)
    for shape, latency_ms, _ in kind.window.observations():
        assert latency_ms == pytest.approx(SLOWDOWN * GPU.predict_ms(shape))
