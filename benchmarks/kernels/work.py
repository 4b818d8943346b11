"""Steps of attention to time and to compare, and times of a GPU. It needs torch, numpy and our kernels, and for a GPU
Triton."""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F

from benchmarks.harness.turns import Step, T, Times, in_turns
from kernels.cpu.attention import GatherBuffer
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.slots import StepLayout

BLOCK_SIZE = 16
HEADS = {"SmolLM2-135M": (9, 3, 64), "Llama-3.1-8B": (32, 8, 128)}  # query heads, KV heads, head size
FLUSHED_BYTES = 256 << 20  # more than the L2 cache of any GPU
HOST_LEAD_CYCLES = 2_000_000  # of the device, a millisecond: in which any step is launched

Attention = Callable[[], torch.Tensor]
"""Gives [num_tokens, num_heads, head_dim]."""


@dataclass(frozen=True)
class Scheduled:
    """A ``kernels.slots.Scheduled``."""

    num_computed_tokens: int
    token_ids: list[int]
    block_table: list[int]
    fills_right: bool = False


@dataclass(frozen=True)
class Work:
    """One step of attention over scattered blocks; the pool has no others."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    sequences: list[Scheduled]
    scale: float

    @classmethod
    def of(cls, heads: tuple[int, int, int], parts: Sequence[tuple[int, int]], device: str, dtype: torch.dtype) -> Self:
        """``parts``: computed and new tokens of each sequence, decodes first."""
        num_heads, num_kv_heads, head_dim = heads
        needed = [-(-sum(part) // BLOCK_SIZE) for part in parts]
        pool = random.Random(0).sample(range(sum(needed)), sum(needed))
        tables = [[pool.pop() for _ in range(count)] for count in needed]
        sequences = [
            Scheduled(computed, [0] * new, table) for (computed, new), table in zip(parts, tables, strict=True)
        ]
        torch.manual_seed(0)
        shape = (sum(needed), BLOCK_SIZE, num_kv_heads, 2 * head_dim)
        kv_cache = torch.randn(shape, device=device, dtype=dtype)
        query = torch.randn(sum(new for _, new in parts), num_heads, head_dim, device=device, dtype=dtype)
        return cls(query, kv_cache, sequences, head_dim**-0.5)

    def filled(self, right: Callable[[int], bool]) -> Self:
        """The same with sequence i filling its blocks from the right where ``right(i)``."""
        return replace(self, sequences=[replace(each, fills_right=right(i)) for i, each in enumerate(self.sequences)])

    def step(self, fused: bool = False, paged: bool | None = None) -> Attention:
        """Our attention, the metadata built once. ``paged``: by the Triton kernels; None is as the device needs it."""
        layout = StepLayout.of(self.sequences, *self.kv_cache.shape[:2])
        metadata = AttentionMetadata.of(layout, self.kv_cache, paged, fused)
        buffer = GatherBuffer()
        return lambda: paged_attention(self.query, self.kv_cache, metadata, self.scale, buffer)

    def gathered(self) -> Attention:
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


class ColdCudaTimes(Times):
    """Milliseconds on the GPU, of steps that find nothing of what they read in the L2 cache, as layers of a model do.
    The device waits until the host is ahead, as it is where steps are recorded, so that launches do not count."""

    def time(self, step: Callable[[], T]) -> T:
        _flushed().zero_()
        torch.cuda._sleep(HOST_LEAD_CYCLES)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        done = step()
        end.record()
        end.synchronize()
        self.clock_ms.append(start.elapsed_time(end))
        return done


@functools.cache
def _flushed() -> torch.Tensor:
    return torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")


def medians_ms(steps: Mapping[str, Step], runs: int, cuda: bool) -> dict[str, float]:
    """Of each step by its name, all in turns, after three turns to warm up."""
    times = in_turns(list(steps.values()), runs, 3, ColdCudaTimes if cuda else Times)
    return {name: each.median_ms if cuda else each.median_cpu_ms for name, each in zip(steps, times, strict=True)}
