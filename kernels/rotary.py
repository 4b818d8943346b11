"""Rotary position embedding (Su et al., 2021) of heads whose two numbers that turn together stand side by side."""

import torch
from torch import Tensor


def apply_rotary(query: Tensor, key: Tensor, turns: Tensor, paged: bool | None = None) -> None:
    """Turn ``query`` [num_tokens, num_heads, k_dim] and ``key`` [num_tokens, num_kv_heads, k_dim] in place, in float32.

    ``turns`` [num_tokens, k_dim / 2], complex64, by which numbers 2i and 2i + 1 of a token's heads are turned as one
    complex number; both dtypes are the same. ``paged``: by the Triton kernel; None is as the device needs it.
    """
    if paged or (paged is None and query.is_cuda):
        from kernels.gpu.rotary import apply_rotary as apply_by_triton

        apply_by_triton(query, key, turns)
        return
    for heads in (query, key):
        pairs, by = heads.view(*heads.shape[:2], -1, 2), turns[:, None]
        if heads.dtype is torch.float32:
            torch.view_as_complex(pairs).mul_(by)
        else:
            pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(by)))
