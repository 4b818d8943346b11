"""Speed of the attention and copy kernels: ``python -m benchmarks.kernels.kernel_speed`` on the CPU, with
``--device cuda`` on a GPU.

What is compared runs in turns, so that all of it meets the same disturbances; medians are printed. On the CPU, our path
stands beside gathering every slot and one padded SDPA call, on one thread and in CPU time, which leaves out what others
on the machine take; on a GPU, the bandwidth of decodes and slot copies stands beside that of a device-to-device copy,
and attention with direction beside the same kernel without.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
import typer

from benchmarks.harness.command import run_command
from benchmarks.harness.table import print_table
from benchmarks.harness.turns import Step, T, Times, in_turns
from kernels.cpu.attention import GatherBuffer
from kernels.gpu.batch import PagedBatch
from kernels.kv_layers import KVLayers
from kernels.metadata import AttentionMetadata
from kernels.paged_attention import paged_attention
from kernels.slot_copy import gather_slots, scatter_slots
from kernels.step_layout import StepLayout

BLOCK_SIZE = 16
HEADS = {"SmolLM2-135M": (9, 3, 64), "Llama-3.1-8B": (32, 8, 128)}  # query heads, KV heads, head size
CPU_DECODES = ((8, 256), (32, 256), (32, 1024), (4, 4096))  # batch, context
CPU_CHUNKS = ((256, 0), (128, 1024))  # new tokens, computed
LAYERS = 32
CHECKPOINT_SLOTS = 4096


@dataclass(frozen=True)
class Scheduled:
    token_ids: list[int]
    num_computed_tokens: int
    block_table: list[int]
    fills_right: bool


@dataclass(frozen=True)
class Work:
    """One step of attention over scattered blocks."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    sequences: list[Scheduled]
    scale: float

    @classmethod
    def of(cls, heads: tuple[int, int, int], parts: Sequence[tuple[int, int]], device: str, dtype: torch.dtype) -> Work:
        """``parts``: (num_computed, num_new) of each sequence."""
        num_heads, num_kv_heads, head_dim = heads
        counts = [-(-sum(part) // BLOCK_SIZE) for part in parts]
        free = random.Random(0).sample(range(sum(counts)), sum(counts))
        sequences = [
            Scheduled([0] * new, computed, [free.pop() for _ in range(count)], False)
            for (computed, new), count in zip(parts, counts, strict=True)
        ]
        torch.manual_seed(0)
        kv_cache = torch.randn(sum(counts), BLOCK_SIZE, num_kv_heads, 2 * head_dim, device=device, dtype=dtype)
        query = torch.randn(sum(new for _, new in parts), num_heads, head_dim, device=device, dtype=dtype)
        return cls(query, kv_cache, sequences, head_dim**-0.5)

    def step(self, right: Callable[[int], bool]) -> Callable[[], torch.Tensor]:
        """Attention with sequence i filling from the right where ``right(i)``; the metadata is built once."""
        sequences = [
            Scheduled(s.token_ids, s.num_computed_tokens, s.block_table, right(i)) for i, s in enumerate(self.sequences)
        ]
        layout = StepLayout.of(sequences, *self.kv_cache.shape[:2])
        metadata = AttentionMetadata.of(layout, self.kv_cache)
        buffer = GatherBuffer()
        return lambda: paged_attention(self.query, self.kv_cache, metadata, self.scale, buffer)

    def gathered(self) -> Callable[[], torch.Tensor]:
        """Every slot of every sequence gathered into one padded batch, and SDPA on it, masked."""
        lens = torch.tensor([s.num_computed_tokens + len(s.token_ids) for s in self.sequences])
        new = len(self.sequences[0].token_ids)
        key = torch.arange(int(lens.max()))
        tables = torch.tensor([s.block_table for s in self.sequences])
        slots = (tables.repeat_interleave(BLOCK_SIZE, 1) * BLOCK_SIZE + key % BLOCK_SIZE)[:, : len(key)].reshape(-1)
        last = lens[:, None] - new + torch.arange(new)  # [num_sequences, new]
        visible = (key <= last[..., None])[:, None]
        num_heads, head_dim = self.query.shape[1:]
        flat = self.kv_cache.view(-1, *self.kv_cache.shape[2:])

        def run() -> torch.Tensor:
            kv = flat[slots].view(len(lens), len(key), *flat.shape[1:]).transpose(1, 2)
            query = self.query.view(len(lens), new, num_heads, head_dim).transpose(1, 2)
            keys, values = kv[..., :head_dim], kv[..., head_dim:]
            out = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=visible, scale=self.scale, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(-1, num_heads, head_dim)

        return run


class CudaTimes(Times):
    """Milliseconds on the GPU."""

    def time(self, step: Callable[[], T]) -> T:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        done = step()
        end.record()
        end.synchronize()
        self.clock_ms.append(start.elapsed_time(end))
        return done


def medians_ms(steps: Sequence[Step], runs: int, cuda: bool) -> list[float]:
    """Of each step, all in turns, after three turns to warm up."""
    times = in_turns(steps, runs, 3, CudaTimes if cuda else Times)
    return [each.median_ms if cuda else each.median_cpu_ms for each in times]


def measure_cpu(runs: int) -> None:
    torch.set_num_threads(1)
    rows = []
    for name, heads in HEADS.items():
        for batch, context in CPU_DECODES:
            rows.append(
                _cpu_row(f"{name}, decode, batch {batch}, context {context}", heads, [(context - 1, 1)] * batch, runs)
            )
        for new, computed in CPU_CHUNKS:
            rows.append(_cpu_row(f"{name}, chunk of {new} after {computed}", heads, [(computed, new)], runs))
    print(f"torch {torch.__version__}, one thread, float32\n")
    print_table(
        ("attention of one layer", "ms", "all from the right ms", "mixed ms", "gather + SDPA ms", "times as fast"), rows
    )


def _cpu_row(name: str, heads: tuple[int, int, int], parts: Sequence[tuple[int, int]], runs: int) -> list[str]:
    work = Work.of(heads, parts, "cpu", torch.float32)
    steps = [work.step(lambda i: False), work.step(lambda i: True), work.step(lambda i: i % 2 == 0), work.gathered()]
    torch.testing.assert_close(steps[0](), steps[3](), atol=1e-4, rtol=1e-4)
    left, right, mixed, plain = medians_ms(steps, runs, cuda=False)
    return [name, f"{left:.2f}", f"{right:.2f}", f"{mixed:.2f}", f"{plain:.2f}", f"{plain / left:.2f}"]


def measure_cuda(runs: int) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {HEADS['Llama-3.1-8B']}\n")
    source = torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    rows = [_decode_row(batch, context, source, target, runs) for batch, context in ((32, 8192), (8, 8192), (1, 32768))]
    header = ("decode", "ms", "GB/s", "copy GB/s", "of the copy", "splits' gain", "direction: time ratio")
    print_table(header, rows)
    print()
    print_table(("prefill", "ms", "TFLOP/s"), [_prefill_row(*part, runs) for part in ((8192, 0), (512, 7680))])
    print()
    print_table((f"{CHECKPOINT_SLOTS} slots of {LAYERS} layers", "ms", "GB/s"), _checkpoint_rows(runs))


def _decode_row(batch: int, context: int, source: torch.Tensor, target: torch.Tensor, runs: int) -> list[str]:
    from kernels.gpu.attention import attend

    work = Work.of(HEADS["Llama-3.1-8B"], [(context - 1, 1)] * batch, "cuda", torch.bfloat16)
    layout = StepLayout.of(work.sequences, *work.kv_cache.shape[:2])
    whole = AttentionMetadata.of(layout, work.kv_cache).batch
    assert isinstance(whole, PagedBatch)
    left, mixed, unsplit, copy = medians_ms(
        [
            work.step(lambda i: False),
            work.step(lambda i: i % 2 == 0),
            lambda: attend(work.query, work.kv_cache, whole, work.scale, num_splits=1),
            lambda: target.copy_(source),
        ],
        runs,
        cuda=True,
    )
    read, copied = work.kv_cache.nbytes / left / 1e6, 2 * source.nbytes / copy / 1e6
    figures = [f"{left:.3f}", f"{read:,.0f}", f"{copied:,.0f}", f"{read / copied:.1%}"]
    return [f"batch {batch}, context {context}", *figures, f"{unsplit / left:.2f}", f"{mixed / left:.3f}"]


def _prefill_row(new: int, computed: int, runs: int) -> list[str]:
    heads = HEADS["Llama-3.1-8B"]
    work = Work.of(heads, [(computed, new)], "cuda", torch.bfloat16)
    [ms] = medians_ms([work.step(lambda i: False)], runs, cuda=True)
    reads = new * computed + new * (new + 1) // 2  # pairs of a query and a key
    return [f"{new} tokens after {computed}", f"{ms:.3f}", f"{4 * reads * heads[0] * heads[2] / ms / 1e9:,.0f}"]


def _checkpoint_rows(runs: int) -> list[list[str]]:
    _, num_kv_heads, head_dim = HEADS["Llama-3.1-8B"]
    shape = (2 * CHECKPOINT_SLOTS // BLOCK_SIZE, BLOCK_SIZE, num_kv_heads, 2 * head_dim)
    layers = KVLayers.of([torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)])
    slots = torch.randperm(2 * CHECKPOINT_SLOTS, device="cuda")[:CHECKPOINT_SLOTS]
    here, host = layers.new_buffer(CHECKPOINT_SLOTS), layers.new_buffer(CHECKPOINT_SLOTS, "cpu")
    steps: dict[str, Callable[[], object]] = {
        "gather on the device": lambda: gather_slots(layers, slots, here),
        "scatter on the device": lambda: scatter_slots(layers, slots, here),
        "gather to the host": lambda: gather_slots(layers, slots, host),
        "scatter from the host": lambda: scatter_slots(layers, slots, host),
        "the copy to the host alone": lambda: host.copy_(here, non_blocking=True),
    }
    taken = medians_ms(list(steps.values()), runs, cuda=True)
    return [[name, f"{ms:.3f}", f"{here.nbytes / ms / 1e6:,.1f}"] for name, ms in zip(steps, taken, strict=True)]


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    runs: Annotated[int, typer.Option(help="Per figure.")] = 21,
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device: GPU figures come from a GPU only (leave out --device cuda for the CPU's)")
    with torch.inference_mode():
        measure_cuda(runs) if device == "cuda" else measure_cpu(runs)


if __name__ == "__main__":
    run_command(main)
