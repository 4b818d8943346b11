"""What executors' heartbeats say to a profiler: alive or silent, idle or at work."""

import asyncio

from shared.bus import Bus, Subscription
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat


class LoadWatch:
    """Wakes whoever waits for an executor to fall silent or idle."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._beat: dict[str, asyncio.Event] = {}
        self._idle: dict[str, asyncio.Event] = {}
        self._subscription: Subscription

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)

    async def stop(self) -> None:
        await self._subscription.stop()

    async def wait_idle(self, executor_id: str) -> None:
        """Return at the executor's next heartbeat that shows it without work."""
        await self._idle.setdefault(executor_id, asyncio.Event()).wait()

    async def wait_silent(self, executor_id: str, silence_s: float) -> None:
        """Return when no heartbeat has come for ``silence_s``, counted from now or from a later heartbeat."""
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    await self._beat.setdefault(executor_id, asyncio.Event()).wait()
            except TimeoutError:
                return

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        executor_id = heartbeat.info.executor_id
        waiting = heartbeat.online_waiting + heartbeat.offline_waiting
        running = heartbeat.online_running + heartbeat.offline_running
        _wake(self._beat, executor_id)
        if not waiting and not running:
            _wake(self._idle, executor_id)


def _wake(events: dict[str, asyncio.Event], executor_id: str) -> None:
    """Wake those who wait now; the next who come wait for the next heartbeat."""
    event = events.pop(executor_id, None)
    if event is not None:
        event.set()
