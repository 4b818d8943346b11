"""Paged attention against the float64 reference, over odd shapes and both directions.

Every slot of the pool that is no request's own holds NaN, and requests of opposite directions share blocks, so any read
beyond a request's own slots shows in its result.
"""

import random

import pytest
import torch

from kernels.cpu.attention import GatherBuffer
from tests.kernels.rig import TOLERANCE, Case, Shape, both_paths, dtypes, needs_triton

SHAPES = [
    Shape(((0, 1),)),
    Shape(((0, 2),)),
    Shape(((0, 16), (0, 17), (0, 15)), num_heads=3, num_kv_heads=1, right=(1,)),
    Shape(((15, 1), (16, 1), (17, 1), (31, 1), (300, 1), (299, 1)), num_heads=3, num_kv_heads=1, right=(0, 2, 4)),
    Shape(((1, 1), (700, 1), (2, 1), (600, 1)), num_heads=4, num_kv_heads=1, right=(1, 2)),
    Shape(((64, 33), (1, 130), (128, 5)), num_heads=3, num_kv_heads=1, right=(0,)),
    Shape(((0, 150),), num_heads=2, num_kv_heads=2, right=(0,)),
    Shape(((200, 1), (40, 1), (0, 70), (100, 50)), head_dim=80, num_heads=8, num_kv_heads=2, right=(0, 3)),
    Shape(((200, 1), (0, 31), (40, 1), (7, 1)), head_dim=96, num_heads=4, num_kv_heads=1, right=(1, 2)),
    Shape(((33, 1), (65, 1), (90, 40)), head_dim=128, num_heads=8, num_kv_heads=1, block_size=32, right=(1,)),
    Shape(((33, 1), (70, 1), (10, 20)), head_dim=256, num_heads=3, num_kv_heads=1, block_size=32, right=(0, 2)),
    Shape(((33, 1), (5, 20)), head_dim=512, num_heads=8, num_kv_heads=1, right=(0,)),
    Shape(((5, 1), (11, 1), (3, 9)), num_heads=3, num_kv_heads=1, block_size=1, right=(1,)),
    Shape(((50, 1), (10, 1), (0, 40), (30, 40)), 4, 1, window=16, block_size=8, right=(1, 2)),
    Shape(((50, 1), (9, 1), (20, 40)), num_heads=3, num_kv_heads=1, window=1, right=(0, 2)),
    Shape(((300, 1), (250, 1), (120, 70)), num_heads=3, num_kv_heads=1, window=129, right=(1, 2)),
    Shape(((0, 12), (3, 1)), window=100, right=(0,)),
    Shape(((20, 1), (6, 13)), head_dim=64, v_dim=32, num_heads=2, num_kv_heads=2, right=(1,)),
]
QUICK = (SHAPES[2], SHAPES[3], SHAPES[8], SHAPES[14])  # that the interpreter runs in every dtype


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_matches_float64_reference(shape: Shape, dtype: torch.dtype) -> None:
    Case.of(shape, dtype, paged=False).check()


@needs_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_triton_matches_float64_reference(shape: Shape) -> None:
    Case.of(shape, torch.float32, paged=True).check()


@needs_triton
@dtypes
@pytest.mark.parametrize("shape", [pytest.param(s, marks=[] if s in QUICK else pytest.mark.slow) for s in SHAPES])
def test_triton_matches_float64_reference_in_every_dtype(shape: Shape, dtype: torch.dtype) -> None:
    Case.of(shape, dtype, paged=True).check()


@both_paths
@pytest.mark.parametrize("right", [(), (0,)])
def test_long_decodes_match_reference(right: tuple[int, ...], paged: bool) -> None:
    Case.of(Shape(((4095, 1),), num_heads=4, num_kv_heads=1, right=right), torch.bfloat16, paged).check()


@pytest.mark.slow
@both_paths
@pytest.mark.parametrize("right", [(), (0,)])
@pytest.mark.parametrize("part", [(0, 1024), (4000, 96)])
def test_long_chunks_match_reference(part: tuple[int, int], right: tuple[int, ...], paged: bool) -> None:
    Case.of(Shape((part,), num_heads=4, num_kv_heads=1, right=right), torch.float16, paged).check()


@pytest.mark.parametrize("right", [(), (0,)])
def test_a_long_prompt_matches_reference(right: tuple[int, ...]) -> None:
    """In plain torch alone: the interpreter would take half an hour."""
    Case.of(Shape(((0, 4096),), num_heads=2, num_kv_heads=1, right=right), torch.float32, paged=False).check()


@both_paths
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_random_batches_match_reference(block_size: int, paged: bool) -> None:
    """Decodes and chunks of either direction in random order, on one gather buffer."""
    rng, buffer = random.Random(block_size), GatherBuffer()
    for seed in range(1 if paged else 8):
        count = rng.randint(2, 7)
        parts = tuple((rng.randint(0, 90), 1 if rng.random() < 0.6 else rng.randint(1, 30)) for _ in range(count))
        right = tuple(i for i in range(count) if rng.random() < 0.5)
        shape = Shape(
            parts,
            3 if paged else 6,
            1 if paged else 2,
            block_size=block_size,
            right=right,
            window=rng.choice([None, None, 7, 40]),
        )
        Case.of(shape, torch.float32, paged, seed).check(buffer)


@both_paths
def test_direction_changes_no_result(paged: bool) -> None:
    """The same keys and values, once filled in from the left and once from the right."""
    parts = ((37, 1), (100, 1), (20, 20))
    left = Case.of(Shape(parts, 2, 1), torch.float32, paged)
    right = Case.of(Shape(parts, 2, 1, right=(0, 1, 2)), torch.float32, paged)
    torch.testing.assert_close(left.query, right.query)
    torch.testing.assert_close(left.attended(), right.attended(), atol=1e-6, rtol=1e-6)


@both_paths
def test_query_may_be_a_transposed_view(paged: bool) -> None:
    """Models hand the query over as [heads, tokens, dim] seen the other way round."""
    case = Case.of(Shape(((9, 1), (30, 1), (4, 20)), 4, 2, right=(1,)), torch.float32, paged)
    copied = case.attended()
    viewed = case.with_query(case.query.transpose(0, 1).contiguous().transpose(0, 1)).attended()
    torch.testing.assert_close(viewed, copied)


@needs_triton
@pytest.mark.parametrize("num_splits", range(1, 9))
def test_splits_change_no_result(num_splits: int) -> None:
    """Of sequences so unlike that some splits of the shorter ones are empty."""
    from kernels.gpu.attention import attend
    from kernels.gpu.batch import PagedBatch

    parts = ((270, 1), (30, 1), (0, 1), (90, 4))
    case = Case.of(Shape(parts, num_heads=2, num_kv_heads=1, right=(1, 3)), torch.float16, paged=True)
    batch = case.metadata().batch
    assert isinstance(batch, PagedBatch)
    out = attend(case.query, case.kv_cache, batch, case.scale, num_splits=num_splits)
    tolerance = TOLERANCE[torch.float16]
    torch.testing.assert_close(out.double().cpu(), case.expected(), atol=tolerance, rtol=tolerance)


@needs_triton
def test_splits_of_a_sliding_window() -> None:
    from kernels.gpu.attention import attend
    from kernels.gpu.batch import PagedBatch

    case = Case.of(Shape(((400, 1), (30, 1), (300, 8)), 2, 1, window=200, right=(0,)), torch.float32, paged=True)
    batch = case.metadata().batch
    assert isinstance(batch, PagedBatch)
    out = attend(case.query, case.kv_cache, batch, case.scale, 200, num_splits=3)
    torch.testing.assert_close(out.double().cpu(), case.expected(), atol=2e-5, rtol=2e-5)
