"""Rotary position embedding in Triton: one program a token and a run of its heads, queries and keys in one launch."""

import torch
import triton
import triton.language as tl

PROGRAM_VALUES = 2048


def apply_rotary(query: torch.Tensor, key: torch.Tensor, turns: torch.Tensor) -> None:
    """``kernels.rotary.apply_rotary`` where Triton can reach. Waits for nothing."""
    num_tokens, num_heads, k_dim = query.shape
    num_kv_heads = key.shape[1]
    lanes = max(16, triton.next_power_of_2(k_dim))
    heads = min(triton.next_power_of_2(num_heads), max(1, PROGRAM_VALUES // lanes))
    query_programs = triton.cdiv(num_heads, heads)
    apply_rotary_kernel[(num_tokens, query_programs + triton.cdiv(num_kv_heads, heads))](
        query,
        key,
        torch.view_as_real(turns),
        query_programs,
        num_heads,
        num_kv_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        K_DIM=k_dim,
        LANES=lanes,
        HEADS=heads,
        num_warps=4,
    )


@triton.jit
def apply_rotary_kernel(
    query,  # [num_tokens, num_heads, K_DIM]
    key,  # [num_tokens, num_kv_heads, K_DIM]
    turns,  # [num_tokens, K_DIM / 2, 2], float32, contiguous: cosine and sine of each angle
    query_programs,
    num_heads,
    num_kv_heads,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    K_DIM: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    lane = tl.arange(0, LANES)
    angles = tl.load(turns + token * K_DIM + lane, mask=lane < K_DIM, other=0.0)
    cosine, sine = tl.split(tl.reshape(angles, (LANES // 2, 2)))
    if program < query_programs:
        _turn(
            query + token * query_token_stride, program, num_heads, query_head_stride, cosine, sine, K_DIM, LANES, HEADS
        )
    else:
        program -= query_programs
        _turn(key + token * key_token_stride, program, num_kv_heads, key_head_stride, cosine, sine, K_DIM, LANES, HEADS)


@triton.jit
def _turn(
    heads, program, num_heads, head_stride, cosine, sine, K_DIM: tl.constexpr, LANES: tl.constexpr, HEADS: tl.constexpr
):
    head = program * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    mask = (head < num_heads) & (lane < K_DIM)
    place = heads + head * head_stride + lane
    values = tl.load(place, mask=mask, other=0.0)
    even, odd = tl.split(tl.reshape(values.to(tl.float32), (HEADS, LANES // 2, 2)))
    turned = tl.join(even * cosine[None, :] - odd * sine[None, :], even * sine[None, :] + odd * cosine[None, :])
    tl.store(place, tl.reshape(turned, (HEADS, LANES)).to(values.dtype), mask=mask)
