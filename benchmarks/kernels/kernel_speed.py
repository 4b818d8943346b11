"""Speed of the attention and copy kernels: ``python -m benchmarks.kernels.kernel_speed`` on the CPU, with
``--device cuda`` on a GPU.

What is compared runs in turns, so that all of it meets the same disturbances; medians are printed. On the CPU, our path
stands beside gathering every slot and one padded SDPA call, on one thread and in CPU time, which leaves out what others
on the machine take; on a GPU, the bandwidth of decodes and slot copies stands beside that of a device-to-device copy,
attention with direction beside the same kernel without, and chunks and decodes in one launch beside two.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Self

import torch
import torch.nn.functional as F
import typer

from benchmarks.engine.batches import GREEDY, block_tables
from benchmarks.harness.command import Results, Row, benchmark, formatted
from benchmarks.harness.turns import Step, T, Times, in_turns
from kernels.cpu.attention import GatherBuffer
from kernels.gpu.batch import PagedBatch
from kernels.kv_layers import KVLayers
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.slot_copy import gather_slots, scatter_slots
from kernels.slots import StepLayout
from shared.replica.engine import Sequence as Scheduled

BLOCK_SIZE = 16
HEADS = {"SmolLM2-135M": (9, 3, 64), "Llama-3.1-8B": (32, 8, 128)}  # query heads, KV heads, head size
CPU_DECODES = ((8, 256), (32, 256), (32, 1024), (4, 4096))  # batch, context
CPU_CHUNKS = ((256, 0), (128, 1024))  # new tokens, computed
MIXED = ((64, 8192, 512, 7680), (64, 8192, 2048, 0), (16, 8192, 2048, 14336), (128, 2048, 512, 0))
"""Decodes, their context, new tokens of the chunk, computed ones."""
LAYERS = 32
CHECKPOINT_SLOTS = 4096


@dataclass(frozen=True)
class Work:
    """One step of attention over scattered blocks."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    sequences: list[Scheduled]
    scale: float

    @classmethod
    def of(cls, heads: tuple[int, int, int], parts: Sequence[tuple[int, int]], device: str, dtype: torch.dtype) -> Self:
        """``parts``: computed and new tokens of each sequence, decodes first."""
        num_heads, num_kv_heads, head_dim = heads
        needed = [-(-sum(part) // BLOCK_SIZE) for part in parts]
        [pool] = block_tables(sum(needed), 1)
        tables = [[pool.pop() for _ in range(count)] for count in needed]
        sequences = [
            Scheduled(f"r{n}", [0] * new, computed, table, GREEDY, True)
            for n, ((computed, new), table) in enumerate(zip(parts, tables, strict=True))
        ]
        torch.manual_seed(0)
        shape = (sum(needed), BLOCK_SIZE, num_kv_heads, 2 * head_dim)
        kv_cache = torch.randn(shape, device=device, dtype=dtype)
        query = torch.randn(sum(new for _, new in parts), num_heads, head_dim, device=device, dtype=dtype)
        return cls(query, kv_cache, sequences, head_dim**-0.5)

    def step(self, right: Callable[[int], bool] = lambda i: False, fused: bool = False) -> Callable[[], torch.Tensor]:
        """Attention with sequence i filling from the right where ``right(i)``; the metadata is built once."""
        sequences = [replace(sequence, fills_right=right(i)) for i, sequence in enumerate(self.sequences)]
        layout = StepLayout.of(sequences, *self.kv_cache.shape[:2])
        metadata = AttentionMetadata.of(layout, self.kv_cache, fused=fused)
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
        attend = partial(F.scaled_dot_product_attention, attn_mask=visible, scale=self.scale, enable_gqa=True)

        def run() -> torch.Tensor:
            kv = flat[slots].view(len(lens), len(key), *flat.shape[1:]).transpose(1, 2)
            query = self.query.view(len(lens), new, num_heads, head_dim).transpose(1, 2)
            keys, values = kv[..., :head_dim], kv[..., head_dim:]
            return attend(query, keys, values).transpose(1, 2).reshape(-1, num_heads, head_dim)

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


def medians_ms(steps: Mapping[str, Step], runs: int, cuda: bool) -> dict[str, float]:
    """Of each step by its name, all in turns, after three turns to warm up."""
    times = in_turns(list(steps.values()), runs, 3, CudaTimes if cuda else Times)
    return {name: each.median_ms if cuda else each.median_cpu_ms for name, each in zip(steps, times, strict=True)}


def on_cpu(runs: int) -> Results:
    torch.set_num_threads(1)
    yield f"torch {torch.__version__}, one thread, float32"
    for name, heads in HEADS.items():
        for batch, context in CPU_DECODES:
            work = Work.of(heads, [(context - 1, 1)] * batch, "cpu", torch.float32)
            yield _cpu_row(f"{name}, decode, batch {batch}, context {context}", work, runs)
        for new, computed in CPU_CHUNKS:
            work = Work.of(heads, [(computed, new)], "cpu", torch.float32)
            yield _cpu_row(f"{name}, chunk of {new} after {computed}", work, runs)


def _cpu_row(name: str, work: Work, runs: int) -> Row:
    steps = {
        "ms": work.step(),
        "all from the right ms": work.step(lambda i: True),
        "mixed ms": work.step(lambda i: i % 2 == 0),
        "gather + SDPA ms": work.gathered(),
    }
    torch.testing.assert_close(steps["ms"](), steps["gather + SDPA ms"](), atol=1e-4, rtol=1e-4)
    taken = medians_ms(steps, runs, cuda=False)
    cells = formatted(".2f", {**taken, "times as fast": taken["gather + SDPA ms"] / taken["ms"]})
    return {"attention of one layer": name, **cells}


def on_cuda(runs: int) -> Results:
    yield f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {HEADS['Llama-3.1-8B']}"
    source = torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    for batch, context in ((32, 8192), (8, 8192), (1, 32768)):
        yield _decode_row(batch, context, source, target, runs)
    for new, computed in ((8192, 0), (512, 7680)):
        yield _prefill_row(new, computed, runs)
    for decodes, context, new, computed in MIXED:
        yield _mixed_row([(context - 1, 1)] * decodes, (computed, new), runs)
    yield from _checkpoint_rows(runs)


def _decode_row(batch: int, context: int, source: torch.Tensor, target: torch.Tensor, runs: int) -> Row:
    from kernels.gpu.attention import attend

    work = Work.of(HEADS["Llama-3.1-8B"], [(context - 1, 1)] * batch, "cuda", torch.bfloat16)
    layout = StepLayout.of(work.sequences, *work.kv_cache.shape[:2])
    whole = AttentionMetadata.of(layout, work.kv_cache).batch
    assert isinstance(whole, PagedBatch)
    steps: dict[str, Step] = {
        "left": work.step(),
        "mixed": work.step(lambda i: i % 2 == 0),
        "unsplit": lambda: attend(work.query, work.kv_cache, whole, work.scale, num_splits=1),
        "copy": lambda: target.copy_(source),
    }
    left, mixed, unsplit, copy = medians_ms(steps, runs, cuda=True).values()
    read, copied = work.kv_cache.nbytes / left / 1e6, 2 * source.nbytes / copy / 1e6
    return {
        "decode": f"batch {batch}, context {context}",
        "ms": f"{left:.3f}",
        **formatted(",.0f", {"GB/s": read, "copy GB/s": copied}),
        "of the copy": f"{read / copied:.1%}",
        "splits' gain": f"{unsplit / left:.2f}",
        "direction: time ratio": f"{mixed / left:.3f}",
    }


def _prefill_row(new: int, computed: int, runs: int) -> Row:
    heads = HEADS["Llama-3.1-8B"]
    work = Work.of(heads, [(computed, new)], "cuda", torch.bfloat16)
    [ms] = medians_ms({"prefill": work.step()}, runs, cuda=True).values()
    reads = new * computed + new * (new + 1) // 2  # pairs of a query and a key
    tflops = 4 * reads * heads[0] * heads[2] / ms / 1e9
    return {"prefill": f"{new} tokens after {computed}", "ms": f"{ms:.3f}", "TFLOP/s": f"{tflops:,.0f}"}


def _mixed_row(decodes: list[tuple[int, int]], chunk: tuple[int, int], runs: int, device: str = "cuda") -> Row:
    """What each kind takes alone stands beside both: one launch could be as short as the longer of them."""
    parts = {"decodes alone": decodes, "chunk alone": [chunk], "two launches": [*decodes, chunk]}
    works = {name: Work.of(HEADS["Llama-3.1-8B"], part, device, torch.bfloat16) for name, part in parts.items()}
    steps = {name: work.step() for name, work in works.items()}
    steps["one launch"] = works["two launches"].step(fused=True)
    torch.testing.assert_close(steps["one launch"](), steps["two launches"](), atol=2e-2, rtol=2e-2)
    taken = medians_ms(steps, runs, cuda=device == "cuda")
    return {
        "mixed step": f"{len(decodes)} decodes over {sum(decodes[0])}, {chunk[1]} tokens after {chunk[0]}",
        **formatted(".3f", {f"{name} ms": ms for name, ms in taken.items()}),
        "times as fast": f"{taken['two launches'] / taken['one launch']:.2f}",
    }


def _checkpoint_rows(runs: int) -> Iterator[Row]:
    _, num_kv_heads, head_dim = HEADS["Llama-3.1-8B"]
    shape = (2 * CHECKPOINT_SLOTS // BLOCK_SIZE, BLOCK_SIZE, num_kv_heads, 2 * head_dim)
    layers = KVLayers.of([torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)])
    slots = torch.randperm(2 * CHECKPOINT_SLOTS, device="cuda")[:CHECKPOINT_SLOTS]
    here, host = layers.new_buffer(CHECKPOINT_SLOTS), layers.new_buffer(CHECKPOINT_SLOTS, "cpu")
    steps: dict[str, Step] = {
        "gather on the device": lambda: gather_slots(layers, slots, here),
        "scatter on the device": lambda: scatter_slots(layers, slots, here),
        "gather to the host": lambda: gather_slots(layers, slots, host),
        "scatter from the host": lambda: scatter_slots(layers, slots, host),
        "the copy to the host alone": lambda: host.copy_(here, non_blocking=True),
    }
    for name, ms in medians_ms(steps, runs, cuda=True).items():
        speed = here.nbytes / ms / 1e6
        yield {f"{CHECKPOINT_SLOTS} slots of {LAYERS} layers": name, "ms": f"{ms:.3f}", "GB/s": f"{speed:,.1f}"}


@benchmark
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    runs: Annotated[int, typer.Option(help="Per figure.")] = 21,
) -> Results:
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device: GPU figures come from a GPU only (leave out --device cuda for the CPU's)")
    with torch.inference_mode():
        yield from on_cuda(runs) if device == "cuda" else on_cpu(runs)
