"""Registrations that nobody signs off."""

import time

from services.offline_queue.batches.file_sweep import FORGET_AGE_S
from services.offline_queue.registration_sweep import MAX_SILENT_PERIODS, RegistrationSweep
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from tests.services.offline_queue.batch_desk import ManualClock

SPEC = EngineSpec("m", "sim", "cpu", "float16", 256, 49152, 16, 64, (2,))


async def test_a_silent_executor_is_forgotten_and_one_that_beats_is_not(bus: Bus) -> None:
    clock = ManualClock(time.time())
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    dead, alive = [ExecutorInfo(f"executor-{each}", "epoch", 1, "key", SPEC, 8, 512) for each in ("dead", "alive")]
    for info in (dead, alive):
        await bucket.put(info.executor_id, info)
    sweep = RegistrationSweep(bus, clock)
    for _ in range(MAX_SILENT_PERIODS):
        await sweep.end_period()
    assert await bucket.keys() == {"executor-dead", "executor-alive"}
    sweep.on_heartbeat(alive.executor_id)
    await sweep.end_period()
    assert await bucket.keys() == {"executor-alive"}
    clock.now_s += FORGET_AGE_S + 60
    await sweep.end_period()
    assert len(await bus.subjects(f"KV_{subjects.EXECUTORS_BUCKET}", ">")) == 2  # a clock that is set forgets nothing
    await sweep.end_period()
    assert len(await bus.subjects(f"KV_{subjects.EXECUTORS_BUCKET}", ">")) == 1
