"""Results while the bus does not store them."""

import asyncio
import logging

import pytest

from services.executor import results
from services.executor.results import ResultStore
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from tests.shared.bus.servers import until


async def test_what_is_refused_for_long_is_told_once_and_stored_in_the_end(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results, "RETRY_S", 0.001)
    num_tries, may_send = 0, False

    def fence(subject: str) -> bool:
        nonlocal num_tries
        num_tries += not may_send
        return may_send

    bus.fence(fence)
    of_model = subjects.of_model("a-model")
    store = ResultStore(bus, of_model)
    storing = asyncio.create_task(store.run())
    for line in range(3):
        store.put(OfflineResult(f"batch_1.{line}", [line], FinishReason.STOP))
    await until(lambda: num_tries >= 30)
    may_send = True
    await asyncio.wait_for(store._waiting.join(), 20)
    read = bus.read(subjects.RESULTS_STREAM, of_model.batch_results("batch_1"), OfflineResult)
    assert len([each async for each in read]) == 3
    told = [each for each in caplog.records if each.message == "result not stored yet"]
    assert len([each for each in told if each.levelno >= logging.INFO]) == 3
    storing.cancel()
