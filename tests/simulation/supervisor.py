"""Starts the processes, and starts again what ends, after the delays that the supervisor of a real stack takes."""

from __future__ import annotations

import logging
from contextvars import copy_context
from dataclasses import dataclass, field

from services.local.stack.processes.keeper import Backoff
from services.local.stack.processes.process import GRACE_S
from shared.errors import EngineLostError
from tests.checker import history
from tests.faults.stack.last_words import SETTLED_S, may_end
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import Process, ProcessClock
from tests.simulation.services import Machine, main_of
from tests.simulation.takeover import START_UNIX_S

logger = logging.getLogger(__name__)

KILLED, GRACEFUL = -9, 0
FIRST_PID = 1000
DISTURBED_S = 90.0  # after a fault: that a bus without power is gone, pings tell in a minute
HANG = "hang"


@dataclass
class Kept:
    """One service. ``clock``: of its host, which outlives its processes."""

    name: str
    clock: ProcessClock
    seen: history.Process
    process: Process | None = None
    backoff: Backoff = field(default_factory=Backoff)
    is_wanted: bool = True
    reason: str = ""  # by which the process is to end


class Supervisor:
    """By names of services. A fault gives the ``reason`` for which it ends a process: one that ends without is not as
    it should be."""

    def __init__(
        self, loop: VirtualLoop, machine: Machine, seen: history.History, disturbed_s: float = DISTURBED_S
    ) -> None:
        """``disturbed_s``: after a fault a process may still end by it."""
        self.kept: dict[str, Kept] = {}
        self._loop = loop
        self._machine = machine
        self._seen = seen
        self._disturbed_s = disturbed_s
        self._last_pid = FIRST_PID
        self._context = copy_context()  # of nobody

    def start(self, name: str) -> None:
        """Keep it running from now on."""
        if name not in self.kept:
            self.kept[name] = Kept(name, ProcessClock(self._loop, START_UNIX_S), history.Process(name))
            self._seen.processes.append(self.kept[name].seen)
        kept = self.kept[name]
        kept.is_wanted = True
        if kept.process is None:
            self._start(kept)

    def running(self, name: str) -> Process | None:
        kept = self.kept.get(name)
        return None if kept is None else kept.process

    def kill(self, name: str, reason: str) -> None:
        """SIGKILL; it comes back."""
        kept = self.kept[name]
        if kept.process is not None:
            kept.reason = reason
            kept.seen.starts[-1].grace_s = None
            kept.process.kill()
            self._ended(kept.process, KILLED)

    def terminate(self, name: str, reason: str) -> None:
        """SIGTERM, and SIGKILL where it has not ended in time; it comes back."""
        kept = self.kept[name]
        process = kept.process
        if process is not None:
            kept.reason = reason
            start, grace_s = kept.seen.starts[-1], GRACE_S + self._machine.setup.drain_s_of(name)
            if start.told_s is None:
                start.told_s, start.grace_s = self._loop.time(), grace_s
            process.terminate()
            self._loop.call_later(grace_s, self._kill_late, kept, process, context=self._context)

    def retire(self, name: str, reason: str) -> None:
        """SIGTERM; it does not come back."""
        self.kept[name].is_wanted = False
        self.terminate(name, reason)

    def end_all(self) -> None:
        """At the end of a run: nothing of it stays in the interpreter."""
        for kept in self.kept.values():
            kept.is_wanted = False
            if kept.process is not None:
                kept.process.kill()

    def _start(self, kept: Kept) -> None:
        if kept.process is not None or not kept.is_wanted:
            return
        self._last_pid += 1
        process = kept.process = Process(self._loop, kept.name, self._last_pid, self._ended)
        process.on_death.append(lambda: self._machine.nats.die(kept.name))
        kept.reason = ""
        start = history.Start(self._loop.time(), process.pid)
        kept.seen.starts.append(start)
        process.on_started = lambda: setattr(start, "started_s", self._loop.time())
        process.start(main_of(self._machine, kept.name, process, kept.clock))

    def _ended(self, process: Process, status: int) -> None:
        kept = self.kept[process.name]
        if kept.process is not process:
            return
        start, now_s = kept.seen.starts[-1], self._loop.time()
        start.ended_s, start.status = now_s, status
        is_as_told = bool(kept.reason) and status in (KILLED, GRACEFUL)
        start.reason = kept.reason if is_as_told else self._excuse(process, start)
        start.words = "" if process.error is None else repr(process.error)
        kept.process = None
        logger.info("process ended", extra={"service": kept.name, "status": status, "reason": start.reason})
        if kept.is_wanted:
            delay_s = kept.backoff.next_delay_s(now_s - start.at_s)
            self._loop.call_later(delay_s, self._start, kept, context=self._context)

    def _excuse(self, process: Process, start: history.Start) -> str:
        """Of one that ended by an error: what was done to it, or to its bus, where that may end it; empty for none."""
        now_s = self._loop.time()
        done = (each for each in self._seen.events if each.concerns(process.name))
        kinds = [each.kind for each in done if each.overlaps(now_s, now_s, self._disturbed_s)]
        if isinstance(process.error, EngineLostError):
            return HANG if HANG in kinds else ""
        is_settled = process.at_work_s is not None and now_s - process.at_work_s >= SETTLED_S
        is_at_it = is_settled and start.told_s is None
        has_lost_lease = self._seen.may_have_lost(start.at_s, None)  # by a cut within a renewal the bus has none
        may_be_replaced = has_lost_lease or process.name.startswith("offline-queue")
        error = type(process.error).__name__
        return kinds[-1] if kinds and may_end(error, may_be_replaced, is_at_it) else ""

    def _kill_late(self, kept: Kept, process: Process) -> None:
        if kept.process is process:
            logger.warning("process did not end in time", extra={"service": kept.name})
            process.kill()
            self._ended(process, KILLED)
