"""What is known of the device a model runs on."""

import subprocess
import sys

import pytest
import torch

from services.executor.engines.torch.device import is_lost

# An assertion on the device ends its context, so that a process of its own has to do it.
LOSE = """
import torch
from services.executor.engines.torch.device import is_lost
device = torch.device("cuda")
assert not is_lost(device)
torch._assert_async(torch.zeros(1, device=device, dtype=torch.bool))
assert is_lost(device) and is_lost(device)
"""


def test_a_cpu_is_never_lost() -> None:
    assert not is_lost(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_lost_with_its_context() -> None:
    done = subprocess.run([sys.executable, "-c", LOSE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
