"""Two executors of ``benchmarks.engine.steps_ahead``, with a bus between."""

import asyncio
from pathlib import Path

from benchmarks.engine.steps_ahead import executors, rows
from services.executor.settings import ExecutorSettings
from shared.scheduling.strategy import Strategy

STEP_MS = 9.0  # at least, of Llama 2 7B on an A100


def test_both_executors_have_the_same_streams(nats_url: str, model_folder: Path) -> None:
    settings = ExecutorSettings(
        str(model_folder), nats=nats_url, engine="sim", kv_blocks=64, strategy=Strategy.of("sarathi++")
    )
    with executors(settings):
        found = asyncio.run(rows(nats_url, [1, 3], turns=2, tokens=5))
    assert [row["streams"] for row in found] == ["1", "3"]
    for row in found:
        assert float(row["TBT ms"]) > STEP_MS and float(row["with steps ahead, ms"]) > STEP_MS
        assert float(row["lower quartile"]) <= float(row["ratio"]) <= float(row["upper quartile"])
