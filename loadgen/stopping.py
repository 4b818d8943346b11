"""Work that Ctrl-C and TERM end in order."""

import asyncio
import signal
from collections.abc import Awaitable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_until_signalled(work: Awaitable[None]) -> signal.Signals | None:
    """To the end, or cancelled by SIGINT or SIGTERM, which is returned. A second signal ends the process at once."""
    running = asyncio.current_task()
    assert running is not None
    loop = asyncio.get_running_loop()
    stopped_by: signal.Signals | None = None

    def forget() -> None:
        for each in SIGNALS:
            loop.remove_signal_handler(each)

    def stop(number: signal.Signals) -> None:
        nonlocal stopped_by
        stopped_by = number
        forget()
        running.cancel()

    for each in SIGNALS:
        loop.add_signal_handler(each, stop, each)
    try:
        await work
    except asyncio.CancelledError:
        if stopped_by is None:
            raise
        running.uncancel()
    finally:
        forget()
    return stopped_by
