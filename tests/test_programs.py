"""Programs that tests run as processes of their own."""

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.programs import Program

TOGETHER_S = 0.5


def test_an_exit_status_is_the_same_for_all_threads_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes over a pipe, of which each byte can be read once."""
    together, read = threading.Barrier(2), forkserver.read_signed

    def read_together(descriptor: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(TOGETHER_S)
        return read(descriptor)

    nowhere = Path(os.devnull)
    program = Program("http.server", "0", stdout=nowhere, stderr=nowhere)
    monkeypatch.setattr(forkserver, "read_signed", read_together)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(program.wait) for _ in range(2)]
        program.kill()
        assert [each.result() for each in waiting] == [-signal.SIGKILL] * 2
    assert program.returncode == -signal.SIGKILL
