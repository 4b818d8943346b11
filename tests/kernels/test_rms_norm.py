"""RMS norm by the compiled kernel, against float64."""

import pytest
import torch

pytest.importorskip("numba", reason="Numba is not installed")

from kernels.cpu.rms_norm import rms_norm


@pytest.mark.parametrize("shape", [(1, 576), (3, 1), (130, 65), (0, 8)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rows_match_float64(shape: tuple[int, int], size: float) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape) * size, torch.randn(shape[1])
    expected = torch.nn.functional.rms_norm(x.double(), shape[1:], weight.double(), 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, atol=1e-6, rtol=1e-5)
