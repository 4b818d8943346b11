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
from tests.faults.stack.last_words import (
    AT_WORK,
    SETTLED_S,
    STARTED,
    is_in_order,
    may_end,
    named_error,
    said,
    tracebacks,
)
from tests.faults.stack.shape import NATS

RESTART_S = 0.3
KILL_AGAIN_S = 0.1
STARTING_S = 45.0  # in which a nats-server that something is done to may end
LATE_S = 60.0  # beyond its grace; then it is killed, and was late


class Member:
    """``record`` is the history's. Why it ends is told before it is made to: ``ending``."""

    def __init__(self, command: Command, record: Process, now: Callable[[], float], clock_file: Path) -> None:
        self.name = command.name
        self.record = record
        self.is_disturbed: Callable[[], str] = lambda: ""
        self.settled_s = SETTLED_S
        self._now = now
        self._clock_file = clock_file
        self._reason = ""
        self._is_wanted = False
        self._log_start = 0  # of what the last start said
        self._at_it_s: float | None = None  # since when the last start is at work
        self._num_read = 0  # of the log's bytes, for tracebacks
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
        self._is_wanted = True
        self._keeper = Keeper(self.command, self, Backoff(first_s=RESTART_S, max_s=RESTART_S))
        self._note_log()
        self._keeping = asyncio.create_task(self._keeper.keep(), name=self.name)

    async def stop(self, reason: str) -> None:
        """In order; until it is started again."""
        self._retire()
        self.terminate(reason)
        self.signal(signal.SIGCONT)
        if self._keeping is not None:
            await asyncio.wait((self._keeping,), timeout=self.command.grace_s + LATE_S)
        await self._gone()

    async def take_away(self, reason: str) -> None:
        """SIGKILL; until it is started again."""
        self._retire()
        self.ending(reason)
        await self._gone()

    def ending(self, reason: str, grace_s: float | None = None) -> None:
        """The next end is no fault of its own. ``grace_s``: that it has to end in order, None where it is killed, as
        from then on it is."""
        self._reason = reason
        if self.record.starts and self.record.starts[-1].ended_s is None:
            last = self.record.starts[-1]
            if last.told_s is None or grace_s is None:
                last.grace_s = grace_s
            last.told_s = last.told_s or self._now()

    def terminate(self, reason: str) -> None:
        """SIGTERM."""
        self.ending(reason, self.command.grace_s)
        self.signal(signal.SIGTERM)

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
        """Write down how much memory it has, and whether it serves by now."""
        if self.record.starts and self.record.starts[-1].started_s is None and self._has_said(STARTED):
            self.record.starts[-1].started_s = self._now()
        self._look_at_work()
        with contextlib.suppress(psutil.Error):
            if self.pid is not None and self.pid == self.record.starts[-1].pid:
                self.record.memory.append((self._now(), psutil.Process(self.pid).memory_info().rss))

    def take_tracebacks(self) -> list[str]:
        """That stand in its log and were not given before."""
        log, from_byte = self.command.log, self._num_read
        self._num_read = log.stat().st_size if log.exists() else 0
        return [f"{self.name}: {each}" for each in tracebacks(log, from_byte)]

    def is_running(self) -> bool:
        return self.pid is not None

    def is_ending(self) -> bool:
        """It was told to, and is there."""
        return self.is_running() and self.record.starts[-1].told_s is not None

    def _retire(self) -> None:
        self._is_wanted = False
        self._keeper.retire()

    async def _gone(self) -> None:
        while self._keeping is not None and not self._keeping.done():
            self._keeper.kill()  # nothing where it is just being started
            await asyncio.wait((self._keeping,), timeout=KILL_AGAIN_S)
        if self._keeping is not None:
            await self._keeping
        self._note_end(None)

    def on_started(self, keeper: Keeper) -> None:
        assert keeper.pid is not None
        self.record.starts.append(Start(self._now(), keeper.pid))
        self.record.memory.clear()
        self._at_it_s = None
        if self._is_wanted:
            self._reason = ""
        else:  # it was being started when it was told to end
            keeper.kill()

    def on_crashed(self, keeper: Keeper, status: int | None, delay_s: float) -> None:
        self._note_end(status)
        self._note_log()

    def _note_end(self, status: int | None) -> None:
        if not self.record.starts or self.record.starts[-1].ended_s is not None:
            return
        last = self.record.starts[-1]
        last.ended_s, last.status, last.words = self._now(), status, self._keeper.last_words
        is_as_told = last.grace_s is None or self.name == NATS or is_in_order(status, last.words)
        last.reason = self._reason if self._reason and is_as_told else self._excuse(last)

    def _excuse(self, last: Start) -> str:
        """What kept it from the bus, where that may end it; empty for none."""
        if self.name == NATS:
            assert last.ended_s is not None
            return self.is_disturbed() if last.ended_s - last.at_s < STARTING_S else ""
        self._look_at_work()
        is_settled = self._at_it_s is not None and self._now() - self._at_it_s >= self.settled_s
        is_at_it = is_settled and last.told_s is None
        return self.is_disturbed() if may_end(named_error(last.words), self._is_queue, is_at_it) else ""

    @property
    def _is_queue(self) -> bool:
        return "queue" in self.name

    def _look_at_work(self) -> None:
        if self._at_it_s is None and self._has_said(AT_WORK if self._is_queue else STARTED):
            self._at_it_s = self._now()

    def _note_log(self) -> None:
        """What comes from here on is said by the next start."""
        log = self.command.log
        self._log_start = log.stat().st_size if log.exists() else 0

    def _has_said(self, event: str) -> bool:
        return said(self.command.log, self._log_start, event)
