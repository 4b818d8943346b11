"""Starts the processes, and starts again what ends, after the delays that the supervisor of a real stack takes."""

from __future__ import annotations

import logging
from contextvars import copy_context
from dataclasses import dataclass, field

from services.local.stack.processes.keeper import Backoff
from services.local.stack.processes.process import GRACE_S
from tests.checker import history
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import Process, ProcessClock
from tests.simulation.services import Machine, main_of
from tests.simulation.takeover import START_UNIX_S

logger = logging.getLogger(__name__)

KILLED, GRACEFUL = -9, 0
FIRST_PID = 1000
STARTING_S = 60.0  # that a process may take to be there
DISTURBED_S = 90.0  # after a fault: that a bus without power is gone, pings tell in a minute


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

    def __init__(self, loop: VirtualLoop, machine: Machine, seen: history.History) -> None:
        self.kept: dict[str, Kept] = {}
        self._loop = loop
        self._machine = machine
        self._seen = seen
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
            kept.process.kill()
            self._ended(kept.process, KILLED)

    def terminate(self, name: str, reason: str) -> None:
        """SIGTERM, and SIGKILL where it has not ended in time; it comes back."""
        kept = self.kept[name]
        process = kept.process
        if process is not None:
            kept.reason = reason
            process.terminate()
            grace_s = GRACE_S + (20.0 if name.startswith("gateway") else 0.0)
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
        start.reason = kept.reason or self._excuse(kept.name, start, now_s)
        kept.process = None
        logger.info("process ended", extra={"service": kept.name, "status": status, "reason": start.reason})
        if kept.is_wanted:
            delay_s = kept.backoff.next_delay_s(now_s - start.at_s)
            self._loop.call_later(delay_s, self._start, kept, context=self._context)

    def _excuse(self, name: str, start: history.Start, now_s: float) -> str:
        """Of one that ended by itself: without a bus nothing starts, and a queue whose lease was taken over ends."""
        was_starting = start.started_s is None or now_s - start.at_s < STARTING_S
        may_end = was_starting or name.startswith("offline-queue")
        since_s = self._loop.time() - DISTURBED_S
        is_disturbed = any(event.until_s is None or event.until_s >= since_s for event in self._seen.events)
        return "disturbed" if may_end and is_disturbed else ""

    def _kill_late(self, kept: Kept, process: Process) -> None:
        if kept.process is process:
            logger.warning("process did not end in time", extra={"service": kept.name})
            process.kill()
            self._ended(process, KILLED)
