"""Waiting, with a cancellation that must not be lost."""

import asyncio
import contextlib


def check_cancelled() -> None:
    """Raise CancelledError where the current task was cancelled and went on: asyncio.wait_for of Python 3.11, which
    nats-py awaits everywhere, swallows a cancellation that comes together with the result. A loop of such awaits
    calls this every turn; without it, a process that is told to stop may never stop."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def wait_set(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    check_cancelled()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await event.wait()
