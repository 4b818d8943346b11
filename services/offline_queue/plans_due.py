"""For whom plans are to be made."""

import asyncio

from services.offline_queue.attached import AttachedExecutors


class PlansDue:
    """Filled by whatever happens, emptied by whoever plans."""

    def __init__(self, attached: AttachedExecutors) -> None:
        self._attached = attached
        self._wake = asyncio.Event()
        self._has_work = False  # for executors that wait
        self._has_spoken: dict[str, None] = {}  # since plans were made
        self._aborts: dict[str, dict[str, None]] = {}

    def on_work(self) -> None:
        """Any executor may have something to do."""
        self._has_work = True
        self._wake.set()

    def on_word(self, executor_id: str) -> None:
        """The executor's scheduler has heard a step message."""
        self._has_spoken[executor_id] = None
        self._wake.set()

    def on_discard(self, executor_id: str, request_ids: list[str]) -> None:
        """The executor need not run these any more."""
        if (attached := self._attached.get(executor_id)) is None:
            return
        if held := [request_id for request_id in request_ids if attached.scheduler.holds(request_id)]:
            self._aborts.setdefault(executor_id, {}).update(dict.fromkeys(held))
            self.on_work()

    async def next(self) -> tuple[bool, dict[str, None], dict[str, dict[str, None]]]:
        """Once there is something: whether plans are due for all, the ids of the executors that have spoken, and by
        executor the requests that are to be aborted first."""
        await self._wake.wait()
        self._wake.clear()
        has_work, self._has_work = self._has_work, False
        spoken, self._has_spoken = self._has_spoken, {}
        aborts, self._aborts = self._aborts, {}
        return has_work, spoken, aborts
