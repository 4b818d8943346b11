"""A clock of the day that can be set for one process: Python's own ``time.time``, with what the file says added to it.

Python reads this when it starts, where this folder is on its path. The file is mapped into memory, so that the clock
jumps at the moment at which somebody writes into it.
"""

import mmap
import os
import struct
import time

VARIABLE = "SLACKWATER_TEST_CLOCK"


def _set_forward(path: str) -> None:
    true = time.time
    with open(path, "r+b") as file:  # noqa: PTH123  # pathlib would be read before each program
        seconds = mmap.mmap(file.fileno(), 8)

    def set_time() -> float:
        return true() + float(struct.unpack_from("<d", seconds)[0])

    time.time = set_time


if path := os.environ.get(VARIABLE):
    _set_forward(path)
