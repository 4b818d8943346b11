"""The KV write touches its slots and no others."""

import pytest
import torch

from kernels.kv_write import write_kv
from tests.kernels.rig import DEVICE, both_paths, dtypes


@dtypes
@both_paths
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(("num_heads", "k_dim", "v_dim"), [(2, 6, 4), (3, 80, 80), (1, 256, 128), (33, 128, 128)])
def test_write_touches_only_its_slots(
    num_heads: int, k_dim: int, v_dim: int, side_by_side: bool, paged: bool, dtype: torch.dtype
) -> None:
    device = DEVICE if paged else "cpu"
    kv_cache = torch.zeros(7, 4, num_heads, k_dim + v_dim, dtype=dtype, device=device)
    slots = torch.tensor([25, 3, 14], device=device)
    if side_by_side:  # in rows that hold queries too, as a merged product leaves them
        rows = torch.randn(3, 10 + num_heads * (k_dim + v_dim), dtype=dtype, device=device)[:, 10:]
        key, value = rows.view(3, num_heads, -1).split((k_dim, v_dim), dim=2)
    else:  # as transformers hands them over: [heads, tokens, dim], seen the other way round
        key = torch.randn(num_heads, 3, k_dim, dtype=dtype, device=device).transpose(0, 1)
        value = torch.randn(num_heads, 3, v_dim, dtype=dtype, device=device).transpose(0, 1)
    if paged:
        from kernels.gpu.kv_write import write_kv as write_by_triton

        write_by_triton(key, value, kv_cache, slots)
    else:
        write_kv(key, value, kv_cache, slots)
    flat = kv_cache.view(-1, num_heads, k_dim + v_dim)
    assert torch.equal(flat[slots], torch.cat((key, value), dim=-1))
    untouched = [slot for slot in range(28) if slot not in (25, 3, 14)]
    assert not flat[untouched].any()
