"""What is known of the device a model runs on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from services.executor.engines.torch.device import choose_device, is_lost
from services.executor.engines.torch.engine import TorchEngine
from shared.errors import ConfigError
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model

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


def test_a_block_size_that_a_gpu_cannot_flip_is_refused_before_the_model_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    save_model(tmp_path, "llama", **FAMILIES["llama"])
    with pytest.raises(ConfigError, match="block_size 24: our kernels on a GPU take powers of two"):
        TorchEngine.load(tmp_path, "m", device="cuda", block_size=24)


def test_a_cpu_is_never_lost() -> None:
    assert not is_lost(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_lost_with_its_context() -> None:
    done = subprocess.run([sys.executable, "-c", LOSE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
