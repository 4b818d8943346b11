"""Decodes in static memory, padded: the rows of padding neither read KV nor write it, the others are as ever."""

import random

import numpy as np
import pytest
import torch

from kernels.cpu.attention import GatherBuffer
from kernels.gpu.batch import PagedBatch
from kernels.kv_write import write_kv
from kernels.padded_decodes import PaddedDecodes
from kernels.paged_attention import paged_attention
from kernels.slots import StepLayout
from tests.kernels.rig import DEVICE, Case, Shape, all_slots, needs_triton

MAX_SEQ_LEN = 320


def layout_of(case: Case) -> StepLayout:
    return StepLayout.of(case.sequences, *case.kv_cache.shape[:2])


def padded(case: Case, num_rows: int) -> tuple[PaddedDecodes, torch.Tensor]:
    """The case's decodes among ``num_rows`` static rows, and its query, random in the rows of padding."""
    inputs = PaddedDecodes(num_rows, MAX_SEQ_LEN, case.shape.block_size, case.kv_cache.device)
    inputs.load(layout_of(case), np.arange(len(case.sequences)))
    query = torch.randn(num_rows, *case.query.shape[1:], dtype=case.query.dtype, device=case.query.device)
    query[: len(case.query)] = case.query
    return inputs, query


@needs_triton
@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("window", [None, 40])
def test_rows_among_padding_match_the_reference(block_size: int, window: int | None) -> None:
    """Of any length and direction, one after the other in the same memory."""
    rng = random.Random(block_size)
    inputs: PaddedDecodes | None = None
    for count in (4, 1, 3):
        parts = tuple((rng.choice([0, 1, 15, 40, 270]), 1) for _ in range(count))
        right = tuple(i for i in range(count) if rng.random() < 0.5)
        case = Case.of(
            Shape(parts, 2, 1, block_size=block_size, right=right, window=window), torch.float32, True, count
        )
        own, query = padded(case, 4)
        inputs = inputs or own
        inputs.load(layout_of(case), np.arange(count))
        _, metadata = inputs.rows(4)
        out = paged_attention(query, case.kv_cache, metadata, case.scale, GatherBuffer(), window)
        torch.testing.assert_close(out[:count].double().cpu(), case.expected(), atol=2e-5, rtol=2e-5)
        assert not out[count:].any(), "a row of padding attends to nothing"


@needs_triton
@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_splits_for_the_longest_serve_the_shorter(num_splits: int) -> None:
    from kernels.gpu.attention import attend

    case = Case.of(Shape(((300, 1), (0, 1), (130, 1)), 4, 2, right=(1,)), torch.float32, paged=True)
    inputs, query = padded(case, 8)
    _, metadata = inputs.rows(8)
    assert isinstance(metadata.batch, PagedBatch)
    out = attend(query, case.kv_cache, metadata.batch, case.scale, num_splits=num_splits)
    torch.testing.assert_close(out[:3].double().cpu(), case.expected(), atol=2e-5, rtol=2e-5)
    assert not out[3:].any()


@needs_triton
def test_padding_writes_to_no_slot() -> None:
    case = Case.of(Shape(((20, 1), (5, 1)), 2, 2, head_dim=16, right=(1,)), torch.float32, paged=True)
    inputs, _ = padded(case, 8)
    _, metadata = inputs.rows(8)
    before = case.kv_cache.clone()
    key, value = torch.randn(2, 8, 2, 16, device=DEVICE).unbind()
    write_kv(key, value, case.kv_cache, metadata.slot_mapping, paged=True)
    written = [all_slots(sequence, 16)[-1] for sequence in case.sequences]
    flat, flat_before = case.kv_cache.view(-1, 2, 32), before.view(-1, 2, 32)
    assert torch.equal(flat[written], torch.cat((key, value), dim=-1)[:2])
    others = [slot for slot in range(len(flat)) if slot not in written]
    torch.testing.assert_close(flat[others], flat_before[others], atol=0, rtol=0, equal_nan=True)


@needs_triton
def test_rows_stay_where_they_are() -> None:
    """What was recorded reads the same memory after every load, with nothing left of the step before."""
    inputs = PaddedDecodes(4, MAX_SEQ_LEN, 16, torch.device(DEVICE))
    ids, metadata = inputs.rows(4)
    batch = metadata.batch
    assert isinstance(batch, PagedBatch) and batch.fills_right is not None
    assert metadata.slot_mapping.tolist() == [-1] * 4 and batch.seq_lens.tolist() == [0] * 4
    shapes = (Shape(((33, 1), (7, 1), (4, 1)), right=(1,)), Shape(((16, 1),)))
    for shape in shapes:
        case = Case.of(shape, torch.float32, paged=True)
        layout = layout_of(case)
        count = len(case.sequences)
        inputs.load(layout, np.arange(10, 10 + count))
        assert ids.tolist() == [*range(10, 10 + count), *[0] * (4 - count)]
        assert metadata.position_ids.tolist() == [*layout.positions.tolist(), *[0] * (4 - count)]
        assert metadata.slot_mapping.tolist() == [*layout.slot_mapping.tolist(), *[-1] * (4 - count)]
        assert batch.seq_lens.tolist() == [*layout.seq_lens.tolist(), *[0] * (4 - count)]
        assert batch.fills_right.tolist() == [int(i in shape.right) for i in range(4)]
        for row, table in zip(
            batch.block_tables.tolist(), np.split(layout.blocks, layout.table_ends[:-1]), strict=False
        ):
            assert row[: len(table)] == table.tolist()


def test_what_is_too_much_is_not_held() -> None:
    inputs = PaddedDecodes(2, 32, 16, torch.device("cpu"))

    def holds(*parts: tuple[int, int]) -> bool:
        return inputs.holds(layout_of(Case.of(Shape(parts, head_dim=8), torch.float32, paged=False)))

    assert holds((31, 1)) and holds((3, 1), (8, 1))
    assert not holds((32, 1)), "longer than what attention was cut for"
    assert not holds((3, 1), (8, 1), (9, 1))
    assert not holds((3, 1), (8, 2))
    assert not holds((3, 2))
