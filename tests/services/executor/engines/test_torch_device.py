"""What is known of the device a model runs on."""

import subprocess
import sys

import pytest
import torch

from services.executor.engines.torch.device import choose_device, is_lost
from shared.errors import ConfigError

# An assertion on the device ends its context, so that a process of its own has to do it.
LOSE = """
import torch
from services.executor.engines.torch.device import is_lost
device = torch.device("cuda")
assert not is_lost(device)
torch._assert_async(torch.zeros(1, device=device, dtype=torch.bool))
assert is_lost(device) and is_lost(device)
"""


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1") and choose_device("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match="2 CUDA devices here; write cuda:1 or less"):
        choose_device("cuda:2")


def test_a_cpu_is_never_lost() -> None:
    assert not is_lost(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_lost_with_its_context() -> None:
    done = subprocess.run([sys.executable, "-c", LOSE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
