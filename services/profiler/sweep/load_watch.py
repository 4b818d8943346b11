"""What executors' heartbeats say to a profiler: alive or silent, idle or at work."""

import asyncio

from shared.bus import Bus, Subscription
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat


class LoadWatch:
    """Wakes whoever waits for an executor to fall silent or idle, or to be heard."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._beat: dict[str, asyncio.Event] = {}
        self._heard: dict[str, asyncio.Future[ExecutorInfo]] = {}
        self._idle: dict[str, asyncio.Event] = {}
        self._subscription: Subscription

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)

    async def stop(self) -> None:
        await self._subscription.stop()

    async def wait_idle(self, executor_id: str) -> None:
        """Return at the executor's next heartbeat that shows it without work."""
        await self._idle.setdefault(executor_id, asyncio.Event()).wait()

    async def heard(self, executor_id: str) -> ExecutorInfo:
        """What the executor's next heartbeat says that it is."""
        heard = self._heard.setdefault(executor_id, asyncio.get_running_loop().create_future())
        return await asyncio.shield(heard)  # others may wait for it too

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
        if (heard := self._heard.pop(executor_id, None)) is not None:
            heard.set_result(heartbeat.info)
        if not waiting and not running:
            _wake(self._idle, executor_id)


def _wake(events: dict[str, asyncio.Event], executor_id: str) -> None:
    """Wake those who wait now; the next who come wait for the next heartbeat."""
    event = events.pop(executor_id, None)
    if event is not None:
        event.set()
