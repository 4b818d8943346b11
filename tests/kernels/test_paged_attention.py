"""Paged KV write and attention against the float64 reference, over odd shapes."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch

from kernels.kv_write import write_kv
from kernels.metadata import AttentionMetadata
from kernels.paged_attention import GatherBuffer, paged_attention
from kernels.reference import reference_paged_attention

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass(frozen=True)
class Scheduled:
    token_ids: list[int]
    num_computed_tokens: int
    block_table: list[int]


@dataclass(frozen=True)
class Shape:
    """``parts`` holds (num_computed, num_new) of each sequence."""

    parts: tuple[tuple[int, int], ...]
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None


SHAPES = [
    Shape(((0, 1),)),
    Shape(((0, 2),)),
    Shape(((0, 700),), num_heads=4, num_kv_heads=4),
    Shape(((0, 16), (0, 17), (0, 15))),
    Shape(((699, 1),)),
    Shape(((15, 1), (16, 1), (17, 1), (31, 1), (300, 1), (299, 1))),
    Shape(((1, 1), (700, 1), (2, 1), (600, 1))),
    Shape(((64, 33), (1, 300), (128, 5))),
    Shape(((200, 1), (40, 1), (0, 90), (100, 50)), head_dim=80, num_heads=8, num_kv_heads=2),
    Shape(((200, 1), (0, 31), (40, 1), (7, 1)), head_dim=96, num_heads=6, num_kv_heads=1),
    Shape(((33, 1), (65, 1), (129, 60)), head_dim=128, num_heads=7, num_kv_heads=7, block_size=32),
    Shape(((5, 1), (11, 1), (3, 9)), block_size=1),
    Shape(((50, 1), (10, 1), (0, 40), (30, 40)), window=16, block_size=8),
    Shape(((0, 12), (3, 1)), window=100),
]


def sequences_of(shape: Shape, rng: random.Random) -> tuple[list[Scheduled], int]:
    """Sequences on scattered, distinct blocks, and the number of blocks of the pool."""
    counts = [math.ceil((computed + new) / shape.block_size) for computed, new in shape.parts]
    num_blocks = sum(counts) + 5
    free = rng.sample(range(num_blocks), num_blocks)
    return [
        Scheduled([0] * new, computed, [free.pop() for _ in range(count)])
        for (computed, new), count in zip(shape.parts, counts, strict=True)
    ], num_blocks


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_float64_reference(shape: Shape, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sequences, num_blocks = sequences_of(shape, random.Random(1))
    num_tokens = sum(new for _, new in shape.parts)
    kv_cache = torch.randn(num_blocks, shape.block_size, shape.num_kv_heads, 2 * shape.head_dim, dtype=dtype)
    query = torch.randn(num_tokens, shape.num_heads, shape.head_dim, dtype=dtype)
    key, value = torch.randn(2, num_tokens, shape.num_kv_heads, shape.head_dim, dtype=dtype)
    scale = shape.head_dim**-0.5
    metadata = AttentionMetadata.build(sequences, kv_cache)

    write_kv(key, value, kv_cache, metadata.slot_mapping)
    out = paged_attention(query, kv_cache, metadata, scale, GatherBuffer(), shape.window)

    num_computed, num_new = map(list, zip(*shape.parts, strict=True))
    tables = [sequence.block_table for sequence in sequences]
    expected = reference_paged_attention(query, kv_cache, num_computed, num_new, tables, scale, shape.window)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_random_batches_match_reference() -> None:
    """Twenty batches of decodes and chunks in random order, on one gather buffer."""
    rng, buffer = random.Random(2), GatherBuffer()
    torch.manual_seed(2)
    for _ in range(20):
        parts = tuple(
            (rng.randint(0, 120), 1 if rng.random() < 0.6 else rng.randint(1, 60)) for _ in range(rng.randint(1, 12))
        )
        shape = Shape(parts, num_heads=6, num_kv_heads=2, head_dim=64, block_size=rng.choice([1, 4, 16, 32]))
        sequences, num_blocks = sequences_of(shape, rng)
        kv_cache = torch.randn(num_blocks, shape.block_size, 2, 128)
        query = torch.randn(sum(new for _, new in parts), 6, 64)
        metadata = AttentionMetadata.build(sequences, kv_cache)
        out = paged_attention(query, kv_cache, metadata, 0.125, buffer)
        num_computed, num_new = map(list, zip(*parts, strict=True))
        tables = [sequence.block_table for sequence in sequences]
        expected = reference_paged_attention(query, kv_cache, num_computed, num_new, tables, 0.125)
        torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=2e-5)


def test_query_may_be_a_transposed_view() -> None:
    """Models hand the query over as [heads, tokens, dim] seen the other way round."""
    torch.manual_seed(3)
    sequences, num_blocks = sequences_of(Shape(((9, 1), (30, 1), (4, 20))), random.Random(3))
    kv_cache = torch.randn(num_blocks, 16, 3, 128)
    query = torch.randn(9, 22, 64)
    metadata = AttentionMetadata.build(sequences, kv_cache)
    viewed = paged_attention(query.transpose(0, 1), kv_cache, metadata, 0.125, GatherBuffer())
    copied = paged_attention(query.transpose(0, 1).contiguous(), kv_cache, metadata, 0.125, GatherBuffer())
    torch.testing.assert_close(viewed, copied)


def test_write_touches_only_its_slots() -> None:
    kv_cache = torch.zeros(7, 4, 2, 10)  # keys of 6, values of 4
    slots = torch.tensor([25, 3, 14])
    key, value = torch.randn(3, 2, 6), torch.randn(3, 2, 4)
    write_kv(key, value, kv_cache, slots)
    flat = kv_cache.view(-1, 2, 10)
    torch.testing.assert_close(flat[slots], torch.cat((key, value), dim=-1))
    untouched = [slot for slot in range(28) if slot not in (25, 3, 14)]
    assert not flat[untouched].any()


def test_positions_and_slots_of_a_mixed_step() -> None:
    sequences = [Scheduled([9], 5, [4, 2]), Scheduled([9, 9, 9], 3, [7, 0])]
    metadata = AttentionMetadata.build(sequences, torch.empty(8, 4, 1, 8))
    assert metadata.position_ids.tolist() == [5, 3, 4, 5]
    assert metadata.slot_mapping.tolist() == [9, 31, 0, 1]
    assert metadata.last_rows.tolist() == [0, 3]
    assert [(group.start, group.end) for group in metadata.decode_groups] == [(0, 1)]
    assert [(chunk.start, chunk.end, chunk.seq_len) for chunk in metadata.chunks] == [(1, 4, 6)]


def test_decodes_of_unlike_length_do_not_share_a_group() -> None:
    sequences = [Scheduled([0], length, list(range(50))) for length in (700, 690, 100, 90, 3)]
    metadata = AttentionMetadata.build(sequences, torch.empty(50, 16, 1, 8))
    assert [(group.start, group.end) for group in metadata.decode_groups] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (Scheduled([], 4, [0]), "no token"),
        (Scheduled([0] * 9, 0, [0, 1]), "does not cover"),
        (Scheduled([0], 0, [8]), "outside the pool"),
        (Scheduled([0], 0, [-1]), "outside the pool"),
    ],
)
def test_refuses_what_would_write_elsewhere(sequence: Scheduled, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AttentionMetadata.build([Scheduled([0], 0, [1]), sequence], torch.empty(8, 4, 1, 8))
