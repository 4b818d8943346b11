"""One measured window: online requests, an offline backlog, or both together."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadgen.client.counters import BUSY_METRIC, Reading, idle_share, read_counter
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.openloop import OpenLoop, sleep_until
from loadgen.errors import ServerError
from loadgen.offline.batch import OfflineBatch
from loadgen.offline.requests import OfflineRequests
from loadgen.report.metrics import online_report
from loadgen.report.outcome import PhaseOutcome

OfflineDriver = OfflineBatch | OfflineRequests  # puts a backlog onto a server: ``start``, ``run``, ``stop``


@dataclass(slots=True)
class Phase:
    """Runs for ``duration_s`` and then until the last online answer is in; offline work goes on until then, so that
    late answers meet the same load, but counts only within the window. It begins ``warm_up_s`` before that."""

    client: OpenAIClient
    duration_s: float
    online: OpenLoop | None
    offline: OfflineDriver | None
    warm_up_s: float
    trouble: str | None = None  # why the offline work, or its files, may still be on the server
    _start_s: float | None = None
    _end_s: float = 0.0
    _busy: list[Reading | None] = field(default_factory=list)

    async def run(self, drain: bool) -> None:
        """Run to the end. On cancellation the offline work is taken from the server before it returns; on a second one
        it returns at once. Raises ServerError when the server refuses the batch; one that does not let go of it ends up
        in ``trouble``."""
        is_cancelled = False
        try:
            if self.online is not None:
                await self.online.prepare()
            if self.offline is not None:
                await self.offline.start()
            await self._measure()
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            self._end_s = min(self._end_s, time.perf_counter())
            try:
                await self._stop_offline(drain and not is_cancelled)
            except asyncio.CancelledError:
                if not is_cancelled:  # it came while this drained, say
                    await self._stop_offline(drain=False)
                raise

    async def _stop_offline(self, drain: bool) -> None:
        if self.offline is not None:
            try:
                await self.offline.stop(drain)
            except ServerError as error:
                self.trouble = str(error)

    async def _measure(self) -> None:
        self._start_s = start_s = time.perf_counter() + (self.warm_up_s if self.offline is not None else 0.0)
        self._end_s = end_s = start_s + self.duration_s
        async with asyncio.TaskGroup() as tasks:
            if self.offline is not None:
                tasks.create_task(self.offline.run(start_s, end_s))
            if self.online is not None:
                tasks.create_task(self.online.run(start_s))
                tasks.create_task(self._read_busy(start_s, end_s))

    async def _read_busy(self, start_s: float, end_s: float) -> None:
        for time_s in (start_s, end_s):
            await sleep_until(time_s)
            self._busy.append(await read_counter(self.client, BUSY_METRIC))

    @property
    def how_far(self) -> str:
        """Where it was when it was stopped."""
        if self._start_s is None or self._end_s <= self._start_s:
            return "before its window began"
        if self._end_s < self._start_s + self.duration_s:
            return f"after {self._end_s - self._start_s:.1f} of its {self.duration_s:g} s"
        return "at its end"

    def failed_online(self) -> Iterator[str]:
        """Each online request that failed: which, when it was due, and why."""
        records = self.online.records if self.online else []
        for number, record in enumerate(records, start=1):
            if record.failed:
                due_s = record.due_s - (self._start_s or 0.0)
                yield f"request {number} of {len(records)}, due at {due_s:.1f} s: {record.error}"

    def outcome(self) -> PhaseOutcome:
        """What was measured so far; a side that the phase does not have, or did not get to, is None."""
        online, offline, window = None, None, None
        if self._start_s is not None and self._start_s < self._end_s:
            online = online_report(self.online.records, self._start_s, self._end_s) if self.online else None
            offline = self.offline.report() if self.offline else None
            window = self._start_s, self._end_s
        records = self.online.records if self.online else ()
        idle = idle_share(*self._busy) if len(self._busy) == 2 else None
        return PhaseOutcome(online, offline, records, idle, window)
