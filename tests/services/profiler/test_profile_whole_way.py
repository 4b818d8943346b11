"""From the executor's process to the bus: sweep, samples, coefficients, budget."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.profiler.service import Profiler
from services.profiler.settings import ProfilerSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.model import LatencyModel
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord
from tests.services.profiler.profiling import running, until
from tests.shared.latency.shapes import make_shape, roofline


@pytest.fixture
def executor_process(nats_url: str, model_folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real executor with the sim engine: Llama-2-7B on an A100 by its data sheet."""
    command = [sys.executable, "-m", "services.executor", "--engine", "sim", "--nats", nats_url]
    with (tmp_path / "executor.log").open("wb") as log:
        process = subprocess.Popen([*command, "--model-path", str(model_folder)], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "executor.log").read_text()


async def test_a_real_executor_is_profiled(bus: Bus, tmp_path: Path, executor_process: subprocess.Popen[bytes]) -> None:
    clock = SystemClock()
    predictor = Predictor(bus, PredictorSettings(refit_interval_s=0.2), clock)
    profiler = Profiler(bus, ProfilerSettings(cache_dir=str(tmp_path)), clock)
    async with running(predictor), running(profiler):
        await until(lambda: profiler.details()["profile_state"] == "done", timeout_s=60)
        executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        (registered,) = [entry.value for entry in await executors.entries()]
        assert registered is not None and registered.pid == executor_process.pid
        key = registered.profile_key
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)

        async def model_follows_the_sim() -> bool:
            record = (await models.get(key)).value
            assert record is not None
            return record.mape < 0.1 and _mean_error(record.latency_model()) < 0.1

        await until(model_follows_the_sim, timeout_s=60)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    assert (await budgets.get(key)).value == BudgetRecord(key, 0.0, "tolerance", tolerance=0.02)
    assert (tmp_path / "profiles" / f"{key}.json").exists()


def _mean_error(model: LatencyModel) -> float:
    truth = roofline("llama2-7b", "a100-40g")
    batches = [
        make_shape([prefill] if prefill else [], [context] * decodes)
        for prefill in (0, 64, 256, 480)
        for decodes in (1, 16, 32)
        for context in (100, 1000)
    ]
    return sum(abs(model.predict_ms(b) / truth.predict_ms(b) - 1) for b in batches) / len(batches)
