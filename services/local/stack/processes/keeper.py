"""Keeps one service running: starts it, starts it again when it ends by itself, ends it when told to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Protocol

from services.local.stack.processes.process import Command, Process, bound_log
from shared.errors import StackError

LOG_PERIOD_S = 5.0  # between looks at the size of a log


class Watcher(Protocol):
    """Who wants to know. Called from the event loop."""

    def on_started(self, keeper: Keeper) -> None: ...

    def on_crashed(self, keeper: Keeper, status: int | None, delay_s: float) -> None:
        """The service ended by itself and starts again after the delay. ``status``: None where it could not even be
        started again, as ``last_words`` says."""


class Keeper:
    """One service. ``keep`` runs for as long as the service is wanted; ``stop`` ends it and returns when it is gone."""

    def __init__(self, command: Command, watcher: Watcher, backoff: Backoff | None = None) -> None:
        self.command = command
        self.starts = 0
        self.crashes = 0  # ends by itself, and starts again that could not be
        self.last_words = ""  # of the process that ended last
        self._watcher = watcher
        self.backoff = backoff or Backoff()
        self._process: Process | None = None
        self._retired = asyncio.Event()
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def pid(self) -> int | None:
        """None while it is not running."""
        return self._process.pid if self._process else None

    async def keep(self) -> None:
        """Raises StackError where the program cannot be run."""
        try:
            while not self._retired.is_set():
                started_s = time.monotonic()
                status = await self._try_once()
                if self._retired.is_set():
                    return
                self.crashes += 1
                delay_s = self.backoff.next_delay_s(time.monotonic() - started_s)
                self._watcher.on_crashed(self, status, delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._retired.wait(), delay_s)
        except OSError as error:
            raise StackError(f"{self.name} cannot be started: {error}") from error
        finally:
            self._gone.set()

    def retire(self) -> None:
        """Let the service run, but do not start it again."""
        self._retired.set()

    async def stop(self) -> None:
        """SIGTERM, a bounded wait, SIGKILL; returns when the process is gone. ``keep`` must be running."""
        self.retire()
        self._stopping.set()
        await self._gone.wait()

    def kill(self) -> None:
        """SIGKILL now. Without ``stop`` this is a crash like any other."""
        if self._process:
            self._process.kill()

    async def _try_once(self) -> int | None:
        """As ``_run_once``; None where what could be started before cannot be now: memory or processes are short."""
        try:
            return await self._run_once()
        except OSError as error:
            if not self.starts:
                raise
            self.last_words = str(error)
            return None

    async def _run_once(self) -> int:
        """Start the service and wait for its end, or end it when a stop is requested; the exit status."""
        process = self._process = await Process.start(self.command)
        self.starts += 1
        self._watcher.on_started(self)
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            while not (ended.done() or stopped.done()):
                await asyncio.wait((ended, stopped), timeout=LOG_PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
                bound_log(self.command.log)
            return await ended if ended.done() else await process.terminate(self.command.grace_s)
        finally:
            process.kill()
            self.last_words = process.last_words()
            ended.cancel()
            stopped.cancel()
            self._process = None


@dataclass(slots=True)
class Backoff:
    """Delays that double with each failure, and begin anew after a run that was long enough to count as healthy."""

    first_s: float = 0.2
    max_s: float = 10.0
    healthy_after_s: float = 30.0
    failures: int = field(default=0, init=False)  # in a row

    def next_delay_s(self, uptime_s: float) -> float:
        """Count one failure after ``uptime_s`` of running; the delay before the next start."""
        if uptime_s >= self.healthy_after_s:
            self.failures = 0
        self.failures += 1
        return min(self.max_s, self.first_s * 2.0 ** min(self.failures - 1, 32))
