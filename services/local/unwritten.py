"""Output that cannot be written: nobody reads it any more, or its disk is full."""

import os
from typing import TextIO


def drop_unwritten(stream: TextIO) -> None:
    """What comes, and what is left to be flushed when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
