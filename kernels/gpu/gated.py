"""The gate of an MLP in Triton: one program a run of a token's numbers."""

import torch
import triton
import triton.language as tl

PROGRAM_VALUES = 1024


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``kernels.gated.silu_and_mul`` where Triton can reach. Waits for nothing."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    out = gate_up.new_empty(num_tokens, size)
    if num_tokens:
        silu_and_mul_kernel[(num_tokens, triton.cdiv(size, PROGRAM_VALUES))](
            gate_up, out, size, gate_up.stride(0), LANES=PROGRAM_VALUES, num_warps=4
        )
    return out


@triton.jit
def silu_and_mul_kernel(
    gate_up,  # [num_tokens, 2 * size]
    out,  # [num_tokens, size], contiguous
    size,
    token_stride,
    LANES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    mask = lane < size
    gate = tl.load(gate_up + token * token_stride + lane, mask=mask, other=0.0)
    up = tl.load(gate_up + token * token_stride + size + lane, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    gated = wide / (1.0 + tl.exp(-wide)) * up.to(tl.float32)
    tl.store(out + token * size + lane, gated.to(gate.dtype), mask=mask)
