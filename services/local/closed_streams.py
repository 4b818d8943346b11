"""Streams that were closed before this process began."""

import os
import sys


def open_closed_streams() -> None:
    """Of stdin, stdout and stderr those that this process was started without: nothing is read there, and what is
    written is dropped. No file that is opened later is taken for one of them."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
