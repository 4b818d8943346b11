"""Memory that steps use again."""

import subprocess
import sys

import pytest
import torch

from services.executor.engines.torch.device import keep_freed_memory, zeros

CPU = torch.device("cpu")

TURNS = """
import resource, sys, threading
import torch
from services.executor.engines.torch.device import keep_freed_memory

def turn():
    held = [torch.empty(1 << 20, dtype=torch.uint8).fill_(1) for _ in range(8)]

def count():
    for _ in range(10):
        turn()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        turn()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


def page_faults(mode: str) -> int:
    """Of 20 turns that each take 8 MiB anew, in a thread of a process of their own."""
    command = [sys.executable, "-c", TURNS, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    assert keep_freed_memory()
    assert 10 * page_faults("keep") < page_faults("plain")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_can_be_written_and_are_as_large_as_asked(dtype: torch.dtype) -> None:
    made = zeros((5, 7, 40_000), dtype, CPU)
    assert made.shape == (5, 7, 40_000) and made.dtype is dtype and made.is_contiguous()
    assert not made.any()
    assert made.fill_(1).sum(dtype=torch.float64) == made.numel()


def test_no_memory_for_zeros() -> None:
    with pytest.raises(OSError, match="memory"):
        zeros((1 << 50,), torch.float32, CPU)
