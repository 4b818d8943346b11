"""Attention kernels beside those of others, then what only ours do."""

import torch

from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.pictures import bars, write
from benchmarks.kernels.beside_rivals import Speed, speeds

RUNS = 21


def stage(context: Context) -> Found:
    import triton  # noqa: F401  # whether it is there: the kernels import it late

    found: list[Speed] = []
    with torch.inference_mode():
        said = yield from speeds(context.device, RUNS if context.device == "cuda" else 1, found)
        decodes, prefills = ([each for each in found if each.kind == kind] for kind in ("decode", "prefill"))
        yield write(context.out, "decode-kernels", lambda: bars(decodes, "TB/s", Speed.tb_per_s))
        yield write(context.out, "prefill-kernels", lambda: bars(prefills, "TFLOP/s", Speed.tflop_per_s))
        if context.device == "cuda":
            from benchmarks.kernels.gpu_speed import on_cuda

            yield "Ours alone:"
            yield from on_cuda(RUNS)
    return said
