"""The sim engine, whose steps take virtual time, and the threads that it runs in, which are none."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from services.executor.engines.sim import Pause, Running, SimEngine
from shared.replica.engine import StepBatch, StepResult

HANGS_S = 3600.0  # at a time


class VirtualEngine(SimEngine):
    """``execute`` gives what is to be driven by ``VirtualThreads``. Between ``hang`` and ``go_on`` no step ends that
    begins then."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """As ``SimEngine``."""
        super().__init__(*args, **named)
        self.on_news: Callable[[], None] = lambda: None  # somebody who pauses may go on
        self._goes_on = threading.Event()
        self._goes_on.set()

    def hang(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()
        self.on_news()

    def execute(self, batch: StepBatch) -> Any:
        return self.running(batch)

    def running(self, batch: StepBatch) -> Running[StepResult]:
        while not self._goes_on.is_set():
            yield Pause(HANGS_S, self._goes_on)
        return (yield from super().running(batch))

    def interrupt(self, step: int) -> None:
        super().interrupt(step)
        self.on_news()

    def close(self) -> None:
        super().close()
        self.on_news()


class VirtualThreads(Executor):
    """Runs ``num_threads`` jobs at a time, the others wait in their order and can be cancelled."""

    def __init__(self, engine: VirtualEngine, num_threads: int) -> None:
        self._num_free = num_threads
        self._waiting: deque[tuple[Future[Any], Callable[..., Running[Any]], tuple[Any, ...]]] = deque()
        self._paused: dict[int, tuple[asyncio.TimerHandle, Pause, Running[Any], Future[Any]]] = {}
        self._num_paused = 0
        engine.on_news = self._look_again

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self._waiting.append((job, fn, args))
        asyncio.get_running_loop().call_soon(self._begin)
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return

    def _begin(self) -> None:
        while self._num_free and self._waiting:
            job, function, args = self._waiting.popleft()
            if job.set_running_or_notify_cancel():
                self._num_free -= 1
                self._go_on(function(*args), job)

    def _go_on(self, running: Running[Any], job: Future[Any]) -> None:
        try:
            pause = next(running)
        except StopIteration as ended:
            job.set_result(ended.value)
        except Exception as error:
            job.set_exception(error)
        else:
            self._num_paused += 1
            number = self._num_paused
            timer = asyncio.get_running_loop().call_later(pause.left_s, self._wake, number)
            self._paused[number] = timer, pause, running, job
            return
        self._num_free += 1
        asyncio.get_running_loop().call_soon(self._begin)

    def _wake(self, number: int) -> None:
        _, _, running, job = self._paused.pop(number)
        self._go_on(running, job)

    def _look_again(self) -> None:
        for number, (timer, pause, running, job) in list(self._paused.items()):
            if pause.until.is_set():
                timer.cancel()
                asyncio.get_running_loop().call_soon(self._wake, number)
                self._paused[number] = timer, Pause(0.0, threading.Event()), running, job
