"""Attention kernels beside float64."""

import torch

from benchmarks.gpu.context import Context, Found
from benchmarks.kernels.outputs import beside_float64


def stage(context: Context) -> Found:
    import triton  # noqa: F401  # whether it is there: the kernels import it late

    with torch.inference_mode():
        return (yield from beside_float64(context.device))
