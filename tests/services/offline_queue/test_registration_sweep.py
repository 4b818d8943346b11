"""Registrations that nobody signs off."""

import time

from services.offline_queue.batches.file_sweep import FORGET_AGE_S
from services.offline_queue.registration_sweep import MAX_SILENT_PERIODS, RegistrationSweep
from shared.bus import Bus
from shared.bus.lease import Lease
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.services import LeaseHolder
from tests.services.offline_queue.batch_desk import ManualClock

SPEC = EngineSpec("m", "sim", "cpu", "float16", 256, 49152, 16, 64, (2,))


async def test_a_silent_executor_is_forgotten_and_one_that_beats_is_not(bus: Bus) -> None:
    clock = ManualClock(time.time())
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    dead, alive = [ExecutorInfo(f"executor-{each}", "epoch", 1, "key", SPEC, 8, 512) for each in ("dead", "alive")]
    for info in (dead, alive):
        await bucket.put(info.executor_id, info)
    leases = await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
    await leases.put("executor-dead", LeaseHolder("dead", 1, "here"))
    held = Lease(bus, "executor-alive", clock)
    await held.take(lambda holder: None)
    sweep = RegistrationSweep(bus, clock)
    for _ in range(MAX_SILENT_PERIODS):
        await sweep.end_period()
    assert await bucket.keys() == await leases.keys() == {"executor-dead", "executor-alive"}
    sweep.on_heartbeat(alive.executor_id)
    await sweep.end_period()
    assert await bucket.keys() == await leases.keys() == {"executor-alive"}
    clock.now_s += FORGET_AGE_S + 60
    for num_left in (2, 1):  # a clock that is set forgets nothing
        await sweep.end_period()
        for name in (subjects.EXECUTORS_BUCKET, subjects.LEASES_BUCKET):
            assert len(await bus.subjects(f"KV_{name}", ">")) == num_left


async def test_a_silent_executor_that_is_there_keeps_its_lease(bus: Bus) -> None:
    clock = ManualClock(time.time())
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await bucket.put("executor-0", ExecutorInfo("executor-0", "epoch", 1, "key", SPEC, 8, 512))
    await Lease(bus, "executor-0", clock).take(lambda holder: None)
    sweep = RegistrationSweep(bus, clock)
    for _ in range(MAX_SILENT_PERIODS + 1):
        await sweep.end_period()
    assert not await bucket.keys()
    assert await (await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)).keys() == {"executor-0"}
