"""Numba's threads beside torch's, in a process of its own: both may share one OpenMP runtime."""

import subprocess
import sys

import pytest

pytest.importorskip("numba", reason="Numba is not installed")

LEVELS = """
import ctypes, torch
from kernels.cpu.rms_norm import rms_norm
rms_norm(torch.ones(64, 1024), torch.ones(1024), 1e-5)
runtime = ctypes.CDLL(None)
print(runtime.omp_get_nested() if hasattr(runtime, "omp_get_nested") else 0)
"""


def test_a_thread_that_compiles_begins_no_regions_within_others() -> None:
    done = subprocess.run([sys.executable, "-c", LEVELS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]
