"""What our Triton kernels take on a GPU: the bandwidth of decodes and slot copies beside that of a copy on the device,
attention with direction beside the same kernel without, and chunks and decodes in one launch beside two.
"""

from collections.abc import Iterator

import torch

from benchmarks.harness.table import Results, Row, formatted
from benchmarks.harness.turns import Step
from benchmarks.kernels.work import BLOCK_SIZE, HEADS, Work, medians_ms
from kernels.gpu.attention import attend
from kernels.gpu.batch import PagedBatch
from kernels.kv_layers import KVLayers
from kernels.paged_attention import AttentionMetadata
from kernels.slot_copy import gather_slots, scatter_slots
from kernels.slots import StepLayout

MIXED = ((64, 8192, 512, 7680), (64, 8192, 2048, 0), (16, 8192, 2048, 14336), (128, 2048, 512, 0))
"""Decodes, their context, new tokens of the chunk, computed ones."""
LAYERS = 32
CHECKPOINT_SLOTS = 4096


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
    work = Work.of(HEADS["Llama-3.1-8B"], [(context - 1, 1)] * batch, "cuda", torch.bfloat16)
    layout = StepLayout.of(work.sequences, *work.kv_cache.shape[:2])
    whole = AttentionMetadata.of(layout, work.kv_cache).batch
    assert isinstance(whole, PagedBatch)
    steps: dict[str, Step] = {
        "left": work.step(),
        "mixed": work.filled(lambda i: i % 2 == 0).step(),
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
