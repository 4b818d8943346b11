"""Listens to what a stack says on its bus, for a screen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from shared.bus import Bus
from shared.clock import Clock
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.online import OnlineServed


class Watch(Protocol):
    """What is told of the stack: a ``StackWatch``, or what passes it on to several."""

    def on_heartbeat(self, now_s: float, beat: Heartbeat) -> None: ...

    def on_served(self, now_s: float, served: OnlineServed) -> None: ...

    def on_budget(self, profile_key: str, record: BudgetRecord | None) -> None: ...

    def on_batch(self, now_s: float, batch_id: str, record: BatchRecord | None) -> None: ...

    def has_beaten(self, executor_ids: Iterable[str], num_beats: int) -> bool: ...


FIRST_S = 3.5  # two heartbeats come within


class StackFollower:
    """Make it with ``following``."""

    def __init__(self, bus: Bus, watch: Watch, clock: Clock) -> None:
        self._bus = bus
        self._watch = watch
        self._clock = clock
        self._beaten = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def following(cls, bus: Bus, watch: Watch, clock: Clock) -> AsyncIterator[StackFollower]:
        """Tells the watch whatever comes, with the clock's monotonic time, for as long as the context lasts. Raises
        BusError where the bus refuses to begin; one that is away is waited for."""
        follower = cls(bus, watch, clock)
        budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
        subscriptions = [
            await bus.subscribe(subjects.HEARTBEATS, Heartbeat, follower._on_heartbeat),
            await bus.subscribe(subjects.ONLINE_SERVED, OnlineServed, follower._on_served),
        ]
        watching = [
            asyncio.create_task(budgets.follow(watch.on_budget)),
            asyncio.create_task(batches.follow(follower._on_batch)),
        ]
        try:
            yield follower
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            for subscription in subscriptions:
                await subscription.stop()

    async def wait_for_beats(self, num_beats: int) -> None:
        """Until every registered executor has beaten so often (1 or 2), or should have."""
        bucket = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        registered = [entry.key for entry in await bucket.entries()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                while not self._watch.has_beaten(registered, num_beats):
                    self._beaten.clear()
                    await self._beaten.wait()

    async def _on_heartbeat(self, beat: Heartbeat) -> None:
        self._watch.on_heartbeat(self._clock.monotonic_s(), beat)
        self._beaten.set()

    def _on_batch(self, batch_id: str, record: BatchRecord | None) -> None:
        is_shown = record is not None and not record.is_withdrawn
        self._watch.on_batch(self._clock.monotonic_s(), batch_id, record if is_shown else None)

    async def _on_served(self, served: OnlineServed) -> None:
        self._watch.on_served(self._clock.monotonic_s(), served)
