"""One process of the stack: kept running as ``slackwater up`` keeps it, its starts and ends written down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import psutil

from services.local.stack.processes.keeper import Backoff, Keeper
from services.local.stack.processes.process import Command
from tests.checker.history import Process, Start

RESTART_S = 0.3
KILL_AGAIN_S = 0.1
STARTING_S = 45.0  # a service that finds no bus meanwhile ends, and is started again


class Member:
    """``record`` is the history's. Why it ends is told before it is made to: ``ending``."""

    def __init__(self, command: Command, record: Process, now: Callable[[], float], clock_file: Path) -> None:
        self.name = command.name
        self.record = record
        self.is_disturbed: Callable[[], str] = lambda: ""
        self._now = now
        self._clock_file = clock_file
        self._reason = ""
        self._keeper = Keeper(command, self)
        self._keeping: asyncio.Task[None] | None = None
        self.set_clock(0.0)

    @property
    def pid(self) -> int | None:
        return self._keeper.pid

    @property
    def command(self) -> Command:
        return self._keeper.command

    def become(self, command: Command) -> None:
        """What it runs from its next start on; it has been stopped."""
        self._keeper = Keeper(command, self)

    def start(self) -> None:
        """It runs, and again where it ends, until it is stopped."""
        self._keeper = Keeper(self.command, self, Backoff(first_s=RESTART_S, max_s=RESTART_S))
        self._keeping = asyncio.create_task(self._keeper.keep(), name=self.name)

    async def stop(self, reason: str) -> None:
        """In order; until it is started again."""
        self.ending(reason)
        self.signal(signal.SIGCONT)
        await self._keeper.stop()
        await self._gone()

    async def take_away(self, reason: str) -> None:
        """SIGKILL; until it is started again."""
        self.ending(reason)
        self._keeper.retire()
        while self._keeping is not None and not self._keeping.done():
            self._keeper.kill()  # nothing where it is just being started
            await asyncio.wait((self._keeping,), timeout=KILL_AGAIN_S)
        await self._gone()

    def ending(self, reason: str) -> None:
        """The next end is no fault of its own."""
        self._reason = reason
        if self.record.starts and self.record.starts[-1].ended_s is None:
            self.record.starts[-1].told_s = self._now()

    def signal(self, signum: signal.Signals) -> bool:
        """False where there is no process now."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
            return True
        return False

    def kill(self, reason: str) -> None:
        self.ending(reason)
        self._keeper.kill()

    def set_clock(self, seconds: float) -> None:
        """So much ahead of the true one, from now on, through restarts."""
        mode = "r+b" if self._clock_file.exists() else "wb"
        with self._clock_file.open(mode) as file:  # the same file: it is mapped
            file.write(struct.pack("<d", seconds))

    def look(self) -> None:
        """Write down how much memory it has."""
        with contextlib.suppress(psutil.Error):
            if self.pid is not None and self.pid == self.record.starts[-1].pid:
                self.record.memory.append((self._now(), psutil.Process(self.pid).memory_info().rss))

    def is_running(self) -> bool:
        return self.pid is not None

    async def _gone(self) -> None:
        if self._keeping is not None:
            await self._keeping
        self._note_end(None)

    def on_started(self, keeper: Keeper) -> None:
        assert keeper.pid is not None
        self.record.starts.append(Start(self._now(), keeper.pid))
        self.record.memory.clear()
        self._reason = ""

    def on_crashed(self, keeper: Keeper, status: int, delay_s: float) -> None:
        self._note_end(status)

    def _note_end(self, status: int | None) -> None:
        if not self.record.starts or self.record.starts[-1].ended_s is not None:
            return
        last = self.record.starts[-1]
        last.ended_s, last.status = self._now(), status
        is_starting = last.ended_s - last.at_s < STARTING_S
        last.reason = self._reason or (self.is_disturbed() if is_starting or "queue" in self.name else "")
