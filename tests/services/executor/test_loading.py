"""An executor that is told to end while its engine loads, as the first process of a container, which it is there."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

LOADS_FOR_EVER = """
import sys, threading
from services.executor import __main__ as executor

def load_engine(settings):
    print("loads", flush=True)
    threading.Event().wait()

executor.load_engine = load_engine
sys.exit(executor.main())
"""
FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
WAIT_S = 60.0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="no namespace of processes can be made")
def test_one_that_loads_ends_though_the_system_does_not_end_it(model_folder: Path) -> None:
    """A namespace's first process gets no signal that it does not handle."""
    command = (*FIRST_PROCESS, sys.executable, "-c", LOADS_FOR_EVER, "--model-path", str(model_folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as unshare:
        try:
            assert unshare.stdout is not None and unshare.stdout.readline() == "loads\n"
            (executor,) = psutil.Process(unshare.pid).children()
            executor.terminate()
            assert unshare.wait(WAIT_S) == 128 + signal.SIGTERM
        finally:
            unshare.kill()
