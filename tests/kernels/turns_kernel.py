"""Asks the fused kernel's rule whose turn it is."""

import triton
import triton.language as tl

from kernels.gpu.fused_attention import is_decode_turn


@triton.jit
def turns_kernel(out, num_sms, num_decode_work, num_work, COUNT: tl.constexpr):
    """``out`` [num_sms, COUNT], 1 where an SM's n-th program takes a decode; a program an SM."""
    turn = tl.arange(0, COUNT)
    taken = is_decode_turn(turn, tl.program_id(0), num_sms, num_decode_work, num_work)
    tl.store(out + tl.program_id(0) * COUNT + turn, taken.to(tl.int32))
