"""An executor that is told to end while its engine loads."""

import signal
import subprocess
import sys
from pathlib import Path

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
WAIT_S = 60.0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_one_that_loads_ends_at_once_by_its_own_doing(signum: signal.Signals, model_folder: Path) -> None:
    """A container's first process, which an executor is, would not be ended by the system."""
    command = (sys.executable, "-c", LOADS_FOR_EVER, "--model-path", str(model_folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "loads\n"
            process.send_signal(signum)
            assert process.wait(WAIT_S) == 128 + signum
        finally:
            process.kill()
