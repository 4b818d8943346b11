"""Batches over paged KV in which every slot that is no request's own holds NaN."""

from __future__ import annotations

import importlib.util
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kernels.cpu.attention import GatherBuffer
from kernels.kv_write import write_kv
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.slots import StepLayout, slots_of
from tests.kernels.reference import reference_paged_attention

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"  # where the Triton kernels run

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
both_paths = pytest.mark.parametrize(
    "paged", [pytest.param(False, id="torch"), pytest.param(True, id="triton", marks=needs_triton)]
)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Scheduled:
    token_ids: list[int]
    num_computed_tokens: int
    block_table: list[int]
    fills_right: bool = False


def metadata_of(sequences: Sequence[Scheduled], kv_cache: torch.Tensor, paged: bool | None = None) -> AttentionMetadata:
    return AttentionMetadata.of(StepLayout.of(sequences, *kv_cache.shape[:2]), kv_cache, paged)


@dataclass(frozen=True)
class Shape:
    """``parts`` holds (num_computed, num_new) of each sequence; ``right`` the numbers of those that fill from there."""

    parts: tuple[tuple[int, int], ...]
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None
    right: tuple[int, ...] = ()
    v_dim: int | None = None


@dataclass(frozen=True)
class Case:
    """A shape filled with numbers, on the device of its path."""

    shape: Shape
    sequences: list[Scheduled]
    query: torch.Tensor
    kv_cache: torch.Tensor
    scale: float
    paged: bool

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype, paged: bool, seed: int = 1) -> Case:
        torch.manual_seed(seed)
        v_dim = shape.v_dim or shape.head_dim
        sequences, num_blocks = sequences_of(shape, random.Random(seed))
        device = DEVICE if paged else "cpu"
        width = shape.head_dim + v_dim
        kv_cache = torch.full((num_blocks, shape.block_size, shape.num_kv_heads, width), float("nan"), dtype=dtype)
        whole = [
            Scheduled([0] * sum(part), 0, sequence.block_table, sequence.fills_right)
            for sequence, part in zip(sequences, shape.parts, strict=True)
        ]
        kv_cache = kv_cache.to(device)
        slots = metadata_of(whole, kv_cache, paged).slot_mapping
        key = torch.randn(len(slots), shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device)
        value = torch.randn(len(slots), shape.num_kv_heads, v_dim, dtype=dtype, device=device)
        write_kv(key, value, kv_cache, slots)
        num_tokens = sum(new for _, new in shape.parts)
        query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, dtype=dtype, device=device)
        return cls(shape, sequences, query, kv_cache, shape.head_dim**-0.5, paged)

    def with_query(self, query: torch.Tensor) -> Case:
        return replace(self, query=query)

    def metadata(self) -> AttentionMetadata:
        return metadata_of(self.sequences, self.kv_cache, self.paged)

    def attended(self, buffer: GatherBuffer | None = None) -> torch.Tensor:
        return paged_attention(
            self.query, self.kv_cache, self.metadata(), self.scale, buffer or GatherBuffer(), self.shape.window
        )

    def expected(self) -> torch.Tensor:
        """Float64, on CPU."""
        num_computed, num_new = map(list, zip(*self.shape.parts, strict=True))
        tables = [sequence.block_table for sequence in self.sequences]
        right = [sequence.fills_right for sequence in self.sequences]
        return reference_paged_attention(
            self.query, self.kv_cache, num_computed, num_new, tables, self.scale, self.shape.window, right
        )

    def check(self, buffer: GatherBuffer | None = None) -> None:
        out, tolerance = self.attended(buffer), TOLERANCE[self.query.dtype]
        assert out.dtype == self.query.dtype
        torch.testing.assert_close(out.double().cpu(), self.expected(), atol=tolerance, rtol=tolerance)


def sequences_of(shape: Shape, rng: random.Random) -> tuple[list[Scheduled], int]:
    """Sequences on scattered blocks, and the number of blocks of the pool. A sequence that fills from the right
    shares its last block with one that fills from the left, wherever both find room there."""
    counts = [math.ceil(sum(part) / shape.block_size) for part in shape.parts]
    num_blocks = sum(counts) + 3
    free = rng.sample(range(num_blocks), num_blocks)
    tables = [[free.pop() for _ in range(count)] for count in counts]
    alone = [i for i in range(len(tables)) if i not in shape.right]
    for i in shape.right:
        used = sum(shape.parts[i]) % shape.block_size
        peer = next(
            (j for j in alone if used > 0 and 0 < sum(shape.parts[j]) % shape.block_size <= shape.block_size - used),
            None,
        )
        if peer is not None:
            alone.remove(peer)
            tables[i][-1] = tables[peer][-1]
    return [
        Scheduled([0] * new, computed, table, i in shape.right)
        for i, ((computed, new), table) in enumerate(zip(shape.parts, tables, strict=True))
    ], num_blocks


def all_slots(sequence: Scheduled, block_size: int) -> list[int]:
    """Of every token of the sequence, in order of position."""
    positions = np.arange(sequence.num_computed_tokens + len(sequence.token_ids))
    return slots_of(np.array(sequence.block_table), positions, block_size, sequence.fills_right).tolist()
