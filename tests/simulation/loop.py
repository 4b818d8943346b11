"""An event loop in virtual time: where nothing is ready its clock stands at once at the next timer."""

import asyncio
import gc
import logging
import sys
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

from tests.simulation.process import CURRENT, Process

T = TypeVar("T")

logger = logging.getLogger(__name__)

TICK_S = 1e-6  # a timer takes at least so long: one that is set anew again and again does not stop time
TURNS_BETWEEN_COLLECTIONS = 500_000  # of garbage, so that finalizers run at the same moments of each run


class Stuck(Exception):
    """Nothing is ready and no timer is set, while somebody waits."""


class VirtualHandle(events.Handle):
    """Without what asyncio's own does for debugging, which is most of what it does. The loop fills it in."""

    __slots__ = ()
    __init__ = object.__init__  # type: ignore[assignment]
    _repr = _source_traceback = None
    _callback: Any
    _args: Any
    _context: Context
    _cancelled: bool

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class VirtualTimer(VirtualHandle, events.TimerHandle):
    """Whether it was cancelled is seen when it is due."""

    __slots__ = ()
    _when: float


class VirtualTask(asyncio.Task[T]):
    """Hashed by its number among all tasks, so that a set of tasks has the same order in each run."""

    __slots__ = ("number", "process")

    def __init__(self, *args: Any, number: int, **kwargs: Any) -> None:
        self.number = number
        context: Context | None = kwargs.get("context")
        self.process = CURRENT.get(None) if context is None else context.get(CURRENT)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualFuture(asyncio.Future[T]):
    """Hashed by its number as ``VirtualTask`` is, which it has from the first time on that it is asked for."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            loop = self.get_loop()
            assert isinstance(loop, VirtualLoop)
            self.number = loop.next_number()
            return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(base_events.BaseEventLoop):
    """Single-threaded and without the system: no sockets, signals, threads or subprocesses. What would run in a thread
    runs inline, and its outcome is there ``thread_s()`` later. A callback belongs to the process in whose context it
    was made; that of a stopped process is held back, that of a dead one is dropped."""

    _ready: deque[Any]  # of the base class

    def __init__(self, thread_s: Callable[[], float]) -> None:
        super().__init__()
        self._thread_s = thread_s
        self._now_s = 0.0
        self._times: list[float] = []  # a heap of those for which there are timers
        self._timers: dict[float, list[events.TimerHandle]] = {}  # by time, in the order in which they were set
        self._next_number = 0
        self.num_turns = 0
        self.on_collect: Callable[[], object] = lambda: None
        self.unseen_errors: list[str] = []  # that nobody handled
        self._owners: dict[int, Any] = {}  # of asynchronous generators, by id, those that ended included
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_error)

    # What is asked of a loop

    get_debug = bool  # type: ignore[assignment]  # that is False: each future that is made asks

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return VirtualFuture(loop=self)

    def next_number(self) -> int:
        """Of a task or future."""
        self._next_number += 1
        return self._next_number

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = VirtualHandle()
        handle._callback = callback
        handle._args = args
        handle._context = copy_context() if context is None else context
        handle._cancelled = False
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        soonest_s = self._now_s + TICK_S
        timer = VirtualTimer()
        timer._callback = callback
        timer._args = args
        timer._context = copy_context() if context is None else context
        timer._cancelled = False
        timer._when = when = when if when > soonest_s else soonest_s
        others = self._timers.get(when)
        if others is None:
            self._timers[when] = [timer]
            heappush(self._times, when)
        else:
            others.append(timer)
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            outcome, error = func(*args), None
        except Exception as raised:
            outcome, error = None, raised

        def tell() -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(outcome)  # type: ignore[arg-type]

        self.call_later(self._thread_s(), tell)
        return done

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        return

    # Time

    def _run_once(self) -> None:
        """Turn after turn, until it is told to stop, after the turn. A turn is all that is ready now; where nothing is,
        time goes on to the next timer first."""
        ready, times, timers = self._ready, self._times, self._timers
        while not self._stopping:
            while not ready:
                if not times:
                    raise Stuck(f"nothing happens any more after {self._now_s:.3f} s")
                time_s = heappop(times)
                for timer in timers.pop(time_s):
                    if not timer._cancelled:
                        ready.append(timer)
                        self._now_s = time_s
            for _ in range(len(ready)):
                if not ready:  # those of a process that was killed meanwhile are gone
                    break
                handle = ready.popleft()
                if not handle._cancelled:
                    context = handle._context
                    process = context.get(CURRENT)
                    if process is None or process.state == "running" or process.admits(handle):
                        try:
                            context.run(handle._callback, *handle._args)
                        except (SystemExit, KeyboardInterrupt):
                            raise
                        except BaseException as error:
                            self._failed(handle, error)
            self.num_turns += 1
            if self.num_turns % TURNS_BETWEEN_COLLECTIONS == 0:
                self.on_collect()

    def _call(self, handle: Any) -> None:
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed(handle, error)

    def _failed(self, handle: Any, error: BaseException) -> None:
        self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": handle})

    def resume(self, process: Process) -> None:
        """What was held back of it is ready now."""
        self._ready.extend(process.take_held())

    def tasks_of(self, process: Process) -> list["VirtualTask[Any]"]:
        """In the order in which they were made."""
        tasks = (task for task in asyncio.all_tasks(self) if isinstance(task, VirtualTask) and task.process is process)
        return sorted(tasks, key=lambda task: task.number)

    def run_dying(self, process: Process, max_rounds: int = 50) -> None:
        """Run only what is ready of this process, for the few rounds that its cancelled tasks take to end."""
        ready = self._ready
        for _ in range(max_rounds):
            own = [handle for handle in ready if handle._context.get(CURRENT) is process]
            if not own:
                return
            others = [handle for handle in ready if handle._context.get(CURRENT) is not process]
            ready.clear()
            ready.extend(others)
            for handle in own:
                if not handle._cancelled:
                    self._call(handle)

    def forget_tasks(self) -> None:
        """Close it. Tasks of dead processes never end: whatever they do when they are collected is of no interest."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._ready.clear()
        self._times.clear()
        self._timers.clear()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
            self._ready.clear()
            self.close()

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A cancelled future that nobody asked is none: a killed process leaves some."""
        whose, error = context.get("task") or context.get("future"), context.get("exception")
        process = whose.process if isinstance(whose, VirtualTask) else CURRENT.get(None)
        if not isinstance(error, asyncio.CancelledError) and (process is None or process.state != "dead"):
            who = "-" if process is None else process.name
            self.unseen_errors.append(f"{who}: {context['message']}: {error!r}")
            logger.error(context["message"], exc_info=error)

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        self._owners[id(agen)] = CURRENT.get(None)
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """A killed process closes nothing."""
        process = self._owners.pop(id(agen), None)
        if process is None or process.state != "dead":
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> VirtualTask[Any]:
        return VirtualTask(coro, loop=loop, number=self.next_number(), **kwargs)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def _process_events(self, event_list: object) -> None:
        return
