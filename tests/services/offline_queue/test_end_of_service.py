"""The end of an offline-queue whose bus answers no more."""

import asyncio
from pathlib import Path

import pytest

from services.local.stack.processes.process import GRACE_S
from services.offline_queue import order_memory
from services.offline_queue.service import OfflineQueueService
from services.offline_queue.settings import OfflineQueueSettings
from shared.bus import Bus, connection, lease
from shared.clock import SystemClock
from shared.protocol.access.key_usage import KeyUsage, UsagePlace
from shared.protocol.offline.learnt import LearntBy
from shared.scheduling.strategy import Strategy
from shared.watch import usage_ledger
from tests.programs import stand_still
from tests.services.offline_queue.batch_desk import MODEL, TOKENIZER
from tests.services.offline_queue.test_order_memory import Remembering, end_of
from tests.shared.bus.servers import RealServer, until


async def test_it_ends_before_it_is_killed_with_what_it_could_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = ((order_memory, "STOP_S"), (usage_ledger, "STOP_S"), (lease, "RELEASE_S"), (connection, "CLOSE_S"))
    assert sum(getattr(module, name) for module, name in bounds) < GRACE_S
    for module, name in bounds:  # a part of them, which is far from the process's own time
        monkeypatch.setattr(module, name, getattr(module, name) / 10)
    server = RealServer(tmp_path)
    try:
        bus = await Bus.connect(server.url, "test")
        settings, learnt_by = OfflineQueueSettings("", strategy=Strategy.of("sarathi++")), LearntBy("o", "m", "t", 16)
        service = OfflineQueueService(bus, settings, MODEL, Remembering(), TOKENIZER, SystemClock(), learnt_by)
        running = asyncio.create_task(service.run())
        await until(lambda: service.name == "offline-queue")
        end_of(service._pool, "b.1", 17)
        service._batches.tools.spending.ledger.put(UsagePlace("2026-11-28", "alice", "batch_1"), KeyUsage(1, 10, 4, 5))
        stand_still(server.pid)
        async with asyncio.timeout(GRACE_S):
            running.cancel()
            await asyncio.wait([running])
            await service.stop()
            await bus.close()
    finally:
        server.kill()
