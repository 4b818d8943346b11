"""Taking one executor out of service while what it runs ends, and putting it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from services.local.stack.stack_bus import stack_bus
from shared.bus import Bus
from shared.errors import NoResponderError, StackError
from shared.protocol import subjects
from shared.protocol.messages import ExecutorInfo, Heartbeat, SetDraining

SILENCE_S = 5.0  # an executor that has not beaten for so long is gone


async def drain(
    data_dir: Path, nats: str | None, executor_id: str, wait: bool, tell: Callable[[Heartbeat], None]
) -> Heartbeat:
    """Returns its heartbeat when it holds nothing any more; without ``wait`` when it takes nothing any more. ``tell``
    gets what it answered, and then each heartbeat in which it holds another number of requests. Raises StackError
    where there is no such executor, or it does not end as drained."""
    async with stack_bus("drain", data_dir, nats) as bus:
        beat = await _set_draining(bus, executor_id, True)
        tell(beat)
        beats: asyncio.Queue[Heartbeat] = asyncio.Queue()
        await bus.subscribe(subjects.heartbeat(executor_id), Heartbeat, beats.put)
        while wait and not beat.is_drained:
            before, beat = beat, await _next_beat(beats, beat)
            if beat.num_held != before.num_held:
                tell(beat)
        return beat


async def undrain(data_dir: Path, nats: str | None, executor_id: str) -> Heartbeat:
    """It takes requests again. Raises StackError where there is no such executor."""
    async with stack_bus("undrain", data_dir, nats) as bus:
        return await _set_draining(bus, executor_id, False)


async def _set_draining(bus: Bus, executor_id: str, draining: bool) -> Heartbeat:
    try:
        return await bus.request(subjects.drain(executor_id), SetDraining(draining), Heartbeat)
    except NoResponderError as error:
        bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        known = ", ".join(sorted(entry.key for entry in await bucket.entries())) or "none"
        raise StackError(f"no executor {executor_id} answers; registered: {known}") from error


async def _next_beat(beats: asyncio.Queue[Heartbeat], before: Heartbeat) -> Heartbeat:
    executor_id = before.info.executor_id
    try:
        beat = await asyncio.wait_for(beats.get(), SILENCE_S)
    except TimeoutError:
        raise StackError(f"{executor_id} fell silent while {before.num_held} requests ran there") from None
    if beat.info.epoch != before.info.epoch:
        raise StackError(f"{executor_id} was started anew, and takes requests")
    if not beat.draining:
        raise StackError(f"{executor_id} was told to take requests again")
    return beat
