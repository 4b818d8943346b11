"""Runs side by side, each process with one at a time."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from tests.simulation.run import Order, Outcome, simulate

RUNS_PER_PROCESS = 25  # then a new one takes its place: what a run leaves behind does not add up


class LostRunError(Exception):
    """A process ended before its run did."""


@dataclass(eq=False)
class _Job:
    """A process that simulates, and the end of the pipe to it."""

    process: SpawnProcess
    pipe: Connection
    num_left: int = RUNS_PER_PROCESS
    order: Order = field(init=False)  # that it got last

    @classmethod
    def start(cls, folder: str) -> _Job:
        """``folder``: for its files."""
        context = get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_simulate_what_comes, args=(theirs, folder), daemon=True)
        process.start()
        theirs.close()
        return cls(process, pipe)

    def give(self, order: Order) -> None:
        self.num_left -= 1
        with self._lost(order):
            self.pipe.send(order)
        self.order = order

    def take(self) -> Outcome:
        with self._lost(self.order):
            return cast(Outcome, self.pipe.recv())

    @contextmanager
    def _lost(self, order: Order) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:  # the latter where it has not even read the order
            self.process.join()
            status = self.process.exitcode
            raise LostRunError(f"the process that was to simulate seed {order.seed} has ended ({status})") from error

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def outcomes(orders: Sequence[Order], num_jobs: int) -> Generator[Outcome, None, None]:
    """As they come, of so many processes. Closed, it ends them. Raises LostRunError."""
    with tempfile.TemporaryDirectory(prefix="slackwater-simulation-") as folder:
        yield from _outcomes(orders, num_jobs, folder)


def _outcomes(orders: Sequence[Order], num_jobs: int, folder: str) -> Generator[Outcome, None, None]:
    left, jobs = iter(orders), dict[Connection, _Job]()

    def go_on(job: _Job | None) -> None:
        """With the next order, here or in a new process."""
        order = next(left, None)
        if job is not None and (order is None or not job.num_left):
            jobs.pop(job.pipe).close()
            job = None
        if order is not None:
            job = _Job.start(folder) if job is None else job
            jobs[job.pipe] = job
            job.give(order)

    try:
        for _ in range(num_jobs):
            go_on(None)
        while jobs:
            for pipe in wait(list(jobs)):
                job = jobs[cast(Connection, pipe)]
                outcome = job.take()
                go_on(job)
                yield outcome
    finally:
        for job in jobs.values():
            job.close()


def _simulate_what_comes(pipe: Connection, folder: str) -> None:
    """Until the other end is closed. Who is interrupted at the terminal is the process at that end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    with closing(pipe):
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                return
            pipe.send(simulate(order))
