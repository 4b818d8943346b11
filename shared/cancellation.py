"""Waiting, with a cancellation that must not be lost."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

CANCEL_AGAIN_S = 0.1

T = TypeVar("T")


def check_cancelled() -> None:
    """Raise CancelledError where the current task was cancelled and went on: asyncio.wait_for of Python 3.11, which
    nats-py awaits everywhere, swallows a cancellation that comes together with the result. A loop of such awaits
    calls this every turn; without it, a process that is told to stop may never stop."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class keeping_cancellation:
    """Raises CancelledError where the current task is cancelled inside and what was awaited there has swallowed it. A
    task that was cancelled before may still do there what is to be done at its end."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _num_cancelled()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if _num_cancelled() > self._before:
            raise asyncio.CancelledError


class ending:
    """Cancels a task, where the block ends, until it has ended, however often it swallows that; of what it was given up
    with nobody else asks. A coroutine that is closed inside, as one is that is collected while it waits, may wait for
    nothing more: it leaves the task."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Future[Any]) -> None:
        self._task = task

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if kind is GeneratorExit:
            return
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CANCEL_AGAIN_S)
        if not self._task.cancelled():
            self._task.exception()


async def wait_set(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    check_cancelled()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await event.wait()


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """What it returns. Raises TimeoutError where the time is over first, and what it raises. It is cancelled then, and
    where the caller is, until it has ended: however often it swallows that."""
    task = asyncio.ensure_future(work)
    async with ending(task):
        await asyncio.wait((task,), timeout=max(0.0, timeout_s))
        if not task.done():
            raise TimeoutError
        return task.result()


def _num_cancelled() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
