"""Heads are turned in place, and nothing beside them."""

import pytest
import torch

from kernels.rotary import apply_rotary
from tests.kernels.rig import DEVICE, both_paths, dtypes

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dtypes
@both_paths
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "k_dim", "v_dim"), [(2, 1, 6, 4), (9, 3, 64, 64), (5, 5, 80, 80), (33, 3, 128, 64)]
)
def test_pairs_turn_as_complex_numbers_do(
    num_heads: int, num_kv_heads: int, k_dim: int, v_dim: int, paged: bool, dtype: torch.dtype
) -> None:
    device, num_tokens = DEVICE if paged else "cpu", 3
    query_size, width = num_heads * k_dim, k_dim + v_dim
    rows = torch.randn(num_tokens, query_size + num_kv_heads * width, dtype=dtype, device=device)
    before = rows.double()
    query = rows[:, :query_size].view(num_tokens, num_heads, k_dim)
    kv = rows[:, query_size:].view(num_tokens, num_kv_heads, width)
    angles = torch.randn(num_tokens, k_dim // 2, device=device) * 10
    turns = torch.polar(torch.ones_like(angles), angles)
    apply_rotary(query, kv[..., :k_dim], turns, paged)

    expected_query, expected_kv = before[:, :query_size].view_as(query), before[:, query_size:].view_as(kv).clone()
    expected_kv[..., :k_dim] = turned(expected_kv[..., :k_dim], angles)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(query.double(), turned(expected_query, angles), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(kv.double(), expected_kv, rtol=tolerance, atol=tolerance)
    assert torch.equal(kv[..., k_dim:].double(), before[:, query_size:].view_as(kv)[..., k_dim:])


def turned(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """[num_tokens, num_heads, k_dim], by sines and cosines."""
    angles = angles.double()[:, None]
    even, odd = heads[..., ::2], heads[..., 1::2]
    both = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(both, dim=-1).flatten(-2)
