"""A process of the simulated machine: the callbacks, tasks, clock and connections of one running service."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from shared.errors import SlackwaterError

if TYPE_CHECKING:
    from tests.simulation.engine import VirtualEngine
    from tests.simulation.loop import VirtualLoop

CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
State = Literal["running", "stopped", "dead"]

logger = logging.getLogger(__name__)


class Process:
    """Runs one coroutine, in a context by which the loop knows whose a callback is. ``name`` is the service's, ``pid``
    that of this start of it."""

    def __init__(self, loop: VirtualLoop, name: str, pid: int, on_end: Callable[[Process, int], None]) -> None:
        """``on_end``: told the exit status when it ends by itself; not for one that is killed."""
        self.name = name
        self.pid = pid
        self.state: State = "running"
        self.stopping = asyncio.Event()
        self.engine: VirtualEngine | None = None  # of an executor
        self.on_death: list[Callable[[], None]] = []  # what others see of it is cut off
        self.on_started: Callable[[], None] = lambda: None  # its service serves
        self.at_work_s: float | None = None  # since when; to begin takes a bus
        self.error: BaseException | None = None  # by which it ended
        self._loop = loop
        self._on_end = on_end
        self._held: list[events.Handle] = []
        self._outside = contextvars.copy_context()
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``main`` until it returns; a named error ends the process with status 1, as ``run_service`` has it."""
        self._context.run(self._loop.create_task, self._run(main))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """In this process's context."""
        return self._context.run(function, *args)

    def admits(self, handle: events.Handle) -> bool:
        """Whether its callback may run now; one of a stopped process is kept for later."""
        if self.state == "stopped":
            self._held.append(handle)
        return self.state == "running"

    def pause(self) -> None:
        """SIGSTOP."""
        if self.state == "running":
            self.state = "stopped"

    def resume(self) -> None:
        """SIGCONT."""
        if self.state == "stopped":
            self.state = "running"
            self._loop.resume(self)

    def take_held(self) -> list[events.Handle]:
        held, self._held = self._held, []
        return held

    def terminate(self) -> None:
        """SIGTERM."""
        self.stopping.set()

    def kill(self) -> None:
        """SIGKILL: others see it gone first, so nobody sees what its cancelled tasks do. Not from inside a task."""
        if self.state == "dead":
            return
        self._die()
        mine = self._loop.tasks_of(self)
        for task in mine:
            task.cancel()
        self._loop.run_dying(self)
        for task in mine:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        status = 0
        try:
            await main()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if self.state == "dead":  # it was killed: what it has left is collected
                return
            if isinstance(error, SlackwaterError):
                why = {"service": self.name, "error": f"{type(error).__name__}: {error}"}
                logger.error("stopped by an error", extra=why)
            else:
                logger.exception("stopped by an unforeseen error", extra={"service": self.name})
            status, self.error = 1, error
        if self.state != "dead":
            self._die()
            self._outside.run(self._on_end, self, status)

    def _die(self) -> None:
        for cut in self.on_death:
            cut()
        self.state = "dead"
        self._held.clear()


class ProcessClock:
    """The clocks of one process. ``jump_s`` moves the clock of the day."""

    def __init__(self, loop: VirtualLoop, start_unix_s: float) -> None:
        self._loop = loop
        self._start_unix_s = start_unix_s
        self.jump_s = 0.0
        self.monotonic_s = loop.time

    def unix_s(self) -> float:
        return self._start_unix_s + self.jump_s + self._loop.time()
