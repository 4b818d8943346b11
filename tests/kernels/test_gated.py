"""The gate of an MLP."""

import pytest
import torch

from kernels.gated import silu_and_mul
from tests.kernels.rig import DEVICE, both_paths, dtypes

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dtypes
@both_paths
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 24), (3, 1024), (2, 1536), (0, 24)])
def test_each_number_is_multiplied_by_its_gate(num_tokens: int, size: int, paged: bool, dtype: torch.dtype) -> None:
    gate_up = torch.randn(num_tokens, 2 * size, dtype=dtype, device=DEVICE if paged else "cpu") * 4
    gate, up = gate_up.double().chunk(2, dim=1)
    out = silu_and_mul(gate_up, paged)
    assert out.dtype == dtype and out.is_contiguous()
    torch.testing.assert_close(out.double(), gate / (1 + (-gate).exp()) * up, rtol=TOLERANCE[dtype], atol=1e-2)


@both_paths
def test_rows_may_lie_apart(paged: bool) -> None:
    wide = torch.randn(5, 3, 20, device=DEVICE if paged else "cpu")
    rows = wide[:, 1]
    assert torch.equal(silu_and_mul(rows, paged), silu_and_mul(rows.contiguous(), paged))
