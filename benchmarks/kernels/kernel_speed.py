"""Speed of the attention and copy kernels: ``python -m benchmarks.kernels.kernel_speed`` on the CPU, with
``--device cuda`` on a GPU.

What is compared runs in turns, so that all of it meets the same disturbances; medians are printed. On the CPU, our path
stands beside gathering every slot and one padded SDPA call, on one thread and in CPU time, which leaves out what others
on the machine take; on a GPU, the bandwidth of decodes and slot copies stands beside that of a device-to-device copy,
attention with direction beside the same kernel without, and chunks and decodes in one launch beside two.
"""

import sys
from typing import Annotated

import torch
import typer

from benchmarks.harness.command import Results, Row, benchmark, formatted
from benchmarks.kernels.work import HEADS, Work, medians_ms

DECODES = ((8, 256), (32, 256), (32, 1024), (4, 4096))  # batch, context
CHUNKS = ((256, 0), (128, 1024))  # new tokens, computed


def on_cpu(runs: int) -> Results:
    torch.set_num_threads(1)
    yield f"torch {torch.__version__}, one thread, float32"
    for name, heads in HEADS.items():
        for batch, context in DECODES:
            work = Work.of(heads, [(context - 1, 1)] * batch, "cpu", torch.float32)
            yield _cpu_row(f"{name}, decode, batch {batch}, context {context}", work, runs)
        for new, computed in CHUNKS:
            work = Work.of(heads, [(computed, new)], "cpu", torch.float32)
            yield _cpu_row(f"{name}, chunk of {new} after {computed}", work, runs)


def _cpu_row(name: str, work: Work, runs: int) -> Row:
    steps = {
        "ms": work.step(),
        "all from the right ms": work.filled(lambda i: True).step(),
        "mixed ms": work.filled(lambda i: i % 2 == 0).step(),
        "gather + SDPA ms": work.gathered(),
    }
    torch.testing.assert_close(steps["ms"](), steps["gather + SDPA ms"](), atol=1e-4, rtol=1e-4)
    taken = medians_ms(steps, runs, cuda=False)
    cells = formatted(".2f", {**taken, "times as fast": taken["gather + SDPA ms"] / taken["ms"]})
    return {"attention of one layer": name, **cells}


@benchmark
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    runs: Annotated[int, typer.Option(help="Per figure.")] = 21,
) -> Results:
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device: GPU figures come from a GPU only (leave out --device cuda for the CPU's)")
    with torch.inference_mode():
        if device == "cuda":
            from benchmarks.kernels.gpu_speed import on_cuda  # it needs Triton

            yield from on_cuda(runs)
        else:
            yield from on_cpu(runs)
