"""Long computations that Ctrl-C ends in order."""

import signal
from collections.abc import Callable
from types import FrameType


class _Stopped(BaseException):
    """A signal came."""

    def __init__(self, number: int) -> None:
        self.number = number


def run_until_stopped(run: Callable[[], None]) -> int | None:
    """To the end, or to SIGINT or SIGTERM, whose number is returned."""

    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        run()
    except _Stopped as stopped:
        return stopped.number
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return None
