"""Work that Ctrl-C, TERM and a terminal that is closed end in order."""

import asyncio
import errno
import logging
import signal
import termios
from collections.abc import Awaitable

from shared.nowhere import write_nowhere

logger = logging.getLogger(__name__)


def stopping_signals() -> list[signal.Signals]:
    """A hang-up too, unless it is ignored, as under nohup."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]


async def run_until_signalled(work: Awaitable[None]) -> signal.Signals | None:
    """To the end, or cancelled by one of the signals, which is returned. A second signal ends the process at once. What
    is printed behind it may be printed though the terminal has ended."""
    running = asyncio.current_task()
    assert running is not None
    loop = asyncio.get_running_loop()
    stopped_by: signal.Signals | None = None
    signals = stopping_signals()

    def forget() -> None:
        for each in signals:
            loop.remove_signal_handler(each)

    def stop(number: signal.Signals) -> None:
        nonlocal stopped_by
        stopped_by = number
        forget()
        logger.warning("stopping in order; a second signal ends at once")
        running.cancel()

    for each in signals:
        loop.add_signal_handler(each, stop, each)
    try:
        await work
    except asyncio.CancelledError:
        if stopped_by is None:
            raise
        running.uncancel()
    finally:
        forget()
        let_go_of_terminal()
    return stopped_by


def let_go_of_terminal() -> None:
    """Standard output and error, where they are a terminal that has ended, are nowhere from now on: it refuses what is
    written."""
    for output in (1, 2):
        try:
            termios.tcgetattr(output)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # as of a terminal that has ended, and of nothing else
                write_nowhere(output)
