"""Devices side by side, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

import msgspec

from loadgen.errors import WorkloadError
from services.profiler.capacity.device_job import DeviceJob
from services.profiler.capacity.record import DevicePlan
from shared.process.memory import collect_seldom

EXIT_WITHIN_S = 5.0


class Phase(msgspec.Struct, frozen=True):
    """A run begins. ``total``: its online requests; 0 where it has none."""

    name: str
    total: int


class Done(msgspec.Struct, frozen=True):
    """So many of them have been answered."""

    finished: int


class Failed(msgspec.Struct, frozen=True):
    """The device cannot be planned for; why."""

    why: str


class PlanProgress(Protocol):
    """Who shows how far each device is."""

    def phase(self, device: str, name: str, total: int) -> None: ...

    def done(self, device: str, finished: int) -> None: ...


@dataclass(slots=True)
class SideBySide:
    """``run``, then ``plans``; those may be taken after an interrupt, as far as they are known."""

    jobs: Sequence[DeviceJob]
    progress: PlanProgress
    _plans: dict[str, DevicePlan] = field(init=False, default_factory=dict)
    _running: dict[Connection, tuple[str, SpawnProcess]] = field(init=False, default_factory=dict)

    @property
    def plans(self) -> list[DevicePlan]:
        """In the order of the jobs."""
        return [self._plans.get(job.device) or DevicePlan(job.device, []) for job in self.jobs]

    def run(self) -> None:
        """To the end, or to an error or interrupt, which ends the processes too. Raises WorkloadError where a device
        cannot be planned for."""
        waiting = deque(self.jobs)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < num_cores():
                    self._start(waiting.popleft())
                for connection in wait(list(self._running)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
        finally:
            for _, process in self._running.values():
                process.terminate()
            for _, process in self._running.values():
                process.join(EXIT_WITHIN_S)

    def _start(self, job: DeviceJob) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take the threads' locks along
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        self._running[ours] = job.device, process

    def _hear(self, connection: Connection) -> None:
        device, process = self._running[connection]
        try:
            said = connection.recv()
        except EOFError:
            del self._running[connection]
            process.join()
            if process.exitcode:
                raise WorkloadError(f"{device}: the simulation ended with status {process.exitcode}") from None
            return
        if isinstance(said, Phase):
            self.progress.phase(device, said.name, said.total)
        elif isinstance(said, Done):
            self.progress.done(device, said.finished)
        elif isinstance(said, DevicePlan):
            self._plans[device] = said
        elif isinstance(said, Failed):
            raise WorkloadError(f"{device}: {said.why}")


class _Telling:
    """Progress that goes over the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._connection.send(Phase(name, num_requests))

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._connection.send(Done(finished))

    def offline(self, done: int, backlog: int) -> None: ...


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(job: DeviceJob, connection: Connection) -> None:
    """The process. A Ctrl-C at the terminal is for who started it to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_seldom()
    try:
        connection.send(job.run(_Telling(connection), connection.send))
    except (ValueError, WorkloadError) as error:
        connection.send(Failed(str(error)))
    except BrokenPipeError:  # nobody wants it any more
        return
