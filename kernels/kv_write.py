"""Scatter new keys and values into paged KV blocks.

Layout, shared by every kernel here: one tensor a layer, [num_blocks, block_size, num_kv_heads, k_dim + v_dim]. A block
is contiguous, a token's slot is one row, and K and V of gathered blocks are views that attention reads as they are.
"""

import torch
from torch import Tensor


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor, paged: bool | None = None) -> None:
    """Write ``key`` [num_tokens, num_kv_heads, k_dim] and ``value`` [num_tokens, num_kv_heads, v_dim] in place.

    ``slot_mapping`` [num_tokens], int64: token i goes to block ``slot // block_size``, row ``slot % block_size``.
    The slots of one call are distinct. ``paged``: by the Triton kernel; None is as the device needs it.
    """
    if paged or (paged is None and kv_cache.is_cuda):
        from kernels.gpu.kv_write import write_kv as write_by_triton

        write_by_triton(key, value, kv_cache, slot_mapping)
        return
    slots = kv_cache.view(-1, kv_cache.shape[2], kv_cache.shape[3])
    slots.index_copy_(0, slot_mapping, _side_by_side(key, value))


def _side_by_side(key: Tensor, value: Tensor) -> Tensor:
    """[num_tokens, num_kv_heads, k_dim + v_dim]: a view where they lie so already."""
    width = key.shape[2] + value.shape[2]
    adjoin = value.data_ptr() == key.data_ptr() + key.shape[2] * key.element_size() and _share_memory(key, value)
    if adjoin and key.stride() == value.stride() and key.stride(1) >= width and key.stride(2) == 1:
        return key.as_strided((*key.shape[:2], width), key.stride())
    return torch.cat((key, value), dim=-1)


def _share_memory(key: Tensor, value: Tensor) -> bool:
    return key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
