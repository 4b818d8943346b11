"""Memory that steps use again."""

import subprocess
import sys
from pathlib import Path

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


LOAD = """
import resource, sys
from pathlib import Path
import transformers.models.llama.modeling_llama
from services.executor.engines.torch.engine import TorchEngine
from shared.errors import ModelError

taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = taken + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    TorchEngine.load(Path(sys.argv[1]), "m", device="cpu", num_blocks=8, num_threads=1)
except ModelError as error:
    print(error)
"""


def page_faults(mode: str) -> int:
    """Of 20 turns that each take 8 MiB anew, in a thread of a process of their own."""
    command = [sys.executable, "-c", TURNS, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    assert keep_freed_memory()
    assert 10 * page_faults("keep") <= page_faults("plain")  # not all builds of torch have any


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_can_be_written_and_are_as_large_as_asked(dtype: torch.dtype) -> None:
    made = zeros((5, 7, 40_000), dtype, CPU)
    assert made.shape == (5, 7, 40_000) and made.dtype is dtype and made.is_contiguous()
    assert not made.any()
    assert made.fill_(1).sum(dtype=torch.float64) == made.numel()


def test_no_memory_for_zeros() -> None:
    with pytest.raises(OSError, match="memory"):
        zeros((1 << 50,), torch.float32, CPU)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process has mapped is read from /proc")
def test_a_model_whose_file_does_not_fit_into_memory_is_a_named_error(model_folder: Path) -> None:
    file_mib = (model_folder / "model.safetensors").stat().st_size >> 20
    command = [sys.executable, "-c", LOAD, str(model_folder), str(file_mib * 3 // 4)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"cannot load the model in {model_folder}: " in done.stdout and "allocate memory" in done.stdout
