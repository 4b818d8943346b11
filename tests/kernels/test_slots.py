"""Where the tokens of a step lie, and what is refused."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.batch import GatheredBatch
from kernels.gpu.batch import PagedBatch
from kernels.slots import StepLayout
from tests.kernels.rig import Scheduled, Shape, all_slots, metadata_of, sequences_of


def gathered(sequences: list[Scheduled], kv_cache: torch.Tensor) -> GatheredBatch:
    batch = metadata_of(sequences, kv_cache, paged=False).batch
    assert isinstance(batch, GatheredBatch)
    return batch


def test_positions_and_slots_of_a_mixed_step() -> None:
    sequences = [Scheduled([9], 5, [4, 2]), Scheduled([9, 9, 9], 3, [7, 0]), Scheduled([9, 9], 0, [2], True)]
    metadata = metadata_of(sequences, torch.empty(8, 4, 1, 8), paged=False)
    assert metadata.position_ids.tolist() == [5, 3, 4, 5, 0, 1]
    assert metadata.slot_mapping.tolist() == [9, 31, 0, 1, 11, 10]
    assert StepLayout.of(sequences, 8, 4).row_ends.tolist() == [1, 4, 6]
    batch = metadata.batch
    assert isinstance(batch, GatheredBatch)
    assert [(group.start, group.end) for group in batch.decodes.groups(None, torch.empty(0))] == [(0, 1)]
    assert [(chunk.start, chunk.end, chunk.seq_len) for chunk in batch.chunks] == [(1, 4, 6), (4, 6, 2)]


def test_what_the_kernels_read_of_a_mixed_step() -> None:
    sequences = [Scheduled([9], 5, [4, 2]), Scheduled([9, 9, 9], 3, [7, 0]), Scheduled([9, 9], 0, [2], True)]
    metadata = metadata_of(sequences, torch.empty(8, 4, 1, 8), paged=True)
    assert metadata.position_ids.tolist() == [5, 3, 4, 5, 0, 1]
    assert metadata.slot_mapping.tolist() == [9, 31, 0, 1, 11, 10]
    batch = metadata.batch
    assert isinstance(batch, PagedBatch)
    assert batch.block_tables.tolist() == [[4, 2], [7, 0], [2, 0]]
    assert batch.seq_lens.tolist() == [6, 6, 2]
    assert batch.query_start_loc.tolist() == [0, 1, 4, 6]
    assert batch.fills_right is not None and batch.fills_right.tolist() == [0, 0, 1]
    assert (batch.num_decodes, len(batch.num_new)) == (1, 3)
    tiles = batch.chunk_tiles(2)
    assert tiles.sequences is not None and tiles.first_tokens is not None
    assert list(zip(tiles.sequences.tolist(), tiles.first_tokens.tolist(), strict=True)) == [(1, 2), (1, 0), (2, 0)]
    assert (tiles.first_row, tiles.num_rows, tiles.max_kv_len) == (1, 5, 6)


def test_no_directions_where_all_fill_from_the_left() -> None:
    batch = metadata_of([Scheduled([9], 5, [4, 2])], torch.empty(8, 4, 1, 8), paged=True).batch
    assert isinstance(batch, PagedBatch) and batch.fills_right is None


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=9),
    st.sets(st.integers(0, 8)),
    st.sampled_from([1, 2, 8, 16, 32]),
    st.integers(0, 3),
)
def test_no_slot_has_two_owners(parts: list[tuple[int, int]], right: set[int], block_size: int, seed: int) -> None:
    """Also where requests of opposite directions share a block; and the step writes the last slots of each."""
    shape = Shape(tuple(parts), block_size=block_size, right=tuple(sorted(i for i in right if i < len(parts))))
    sequences, num_blocks = sequences_of(shape, random.Random(seed))
    owned = [all_slots(sequence, block_size) for sequence in sequences]
    flat = [slot for slots in owned for slot in slots]
    assert len(set(flat)) == len(flat)
    metadata = metadata_of(sequences, torch.empty(num_blocks, block_size, 1, 2), paged=False)
    written = [slot for slots, (_, new) in zip(owned, parts, strict=True) for slot in slots[-new:]]
    assert metadata.slot_mapping.tolist() == written


def test_decodes_of_unlike_length_do_not_share_a_group() -> None:
    sequences = [Scheduled([0], length, list(range(50))) for length in (700, 690, 100, 90, 3)]
    groups = gathered(sequences, torch.empty(50, 16, 1, 8)).decodes.groups(None, torch.empty(0))
    assert [(group.start, group.end) for group in groups] == [(0, 2), (2, 4), (4, 5)]


def test_a_window_gathers_only_what_it_shows() -> None:
    [chunk] = gathered([Scheduled([0] * 4, 90, list(range(6)), True)], torch.empty(6, 16, 1, 8)).chunks
    batch = gathered([Scheduled([0], 90, list(range(6)))], torch.empty(6, 16, 1, 8))
    [group] = batch.decodes.groups(10, torch.empty(0))
    assert len(chunk.slots(10)) == 4 + 9
    assert len(group.slots) == 10


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
        metadata_of([Scheduled([0], 0, [1]), sequence], torch.empty(8, 4, 1, 8))


def test_the_kernels_refuse_a_block_size_that_is_no_power_of_two() -> None:
    with pytest.raises(ValueError, match="block size 12"):
        metadata_of([Scheduled([0], 0, [1])], torch.empty(8, 12, 1, 8), paged=True)
