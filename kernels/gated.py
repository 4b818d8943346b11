"""What a gated MLP has between its products."""

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor, paged: bool | None = None) -> torch.Tensor:
    """``silu(gate) * up`` [num_tokens, size], contiguous, of ``gate_up`` [num_tokens, 2 * size], whose rows hold the
    gate and then what it is for. ``paged``: by the Triton kernel, in float32; None is as the device needs it."""
    if paged or (paged is None and gate_up.is_cuda):
        from kernels.gpu.gated import silu_and_mul as by_triton

        return by_triton(gate_up)
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate).mul_(up)
