"""Scatter new keys and values into paged KV blocks, in Triton: one program a token and a run of its heads."""

import torch
import triton
import triton.language as tl

PROGRAM_VALUES = 4096  # of K, and as many of V


def write_kv(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """``kernels.kv_write.write_kv`` where Triton can reach. Waits for nothing. Tokens whose slot is -1 are left out."""
    num_tokens, num_heads, k_dim = key.shape
    key = key if key.stride(2) == 1 else key.contiguous()
    value = value if value.stride(2) == 1 else value.contiguous()
    lanes = triton.next_power_of_2(max(k_dim, value.shape[2]))
    heads = min(triton.next_power_of_2(num_heads), max(1, PROGRAM_VALUES // lanes))
    write_kv_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        key,
        value,
        kv_cache,
        slot_mapping,
        num_heads,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        kv_cache.stride(1),
        kv_cache.stride(2),
        K_DIM=k_dim,
        V_DIM=value.shape[2],
        LANES=lanes,
        HEADS=heads,
        num_warps=4,
    )


@triton.jit
def write_kv_kernel(
    key,  # [num_tokens, num_heads, K_DIM]
    value,  # [num_tokens, num_heads, V_DIM]
    kv_cache,  # [num_blocks, block_size, num_heads, K_DIM + V_DIM]
    slot_mapping,  # [num_tokens], int64; -1: nothing is written
    num_heads,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    slot_stride,
    kv_head_stride,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    slot = tl.load(slot_mapping + token)
    k_mask = (slot >= 0) & (head < num_heads) & (lane < K_DIM)
    v_mask = (slot >= 0) & (head < num_heads) & (lane < V_DIM)
    k = tl.load(key + token * key_token_stride + head * key_head_stride + lane, mask=k_mask)
    v = tl.load(value + token * value_token_stride + head * value_head_stride + lane, mask=v_mask)
    row = kv_cache + slot * slot_stride + head * kv_head_stride
    tl.store(row + lane, k, mask=k_mask)
    tl.store(row + K_DIM + lane, v, mask=v_mask)
