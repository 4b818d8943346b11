"""Where tokens lie in KV blocks, on the host: a request's, and those of a step's sequences.

Position p of a request lies in block ``block_table[p // block_size]``: at offset ``p % block_size`` where the request
fills its blocks from the left (online), and at ``block_size - 1 - p % block_size`` where it fills them from the right
(offline). Two requests of opposite directions can so share a block, each growing towards the other (BROS, 5.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def slots_of(block_table: Ints, positions: Ints, block_size: int, fills_right: bool | npt.NDArray[np.bool_]) -> Ints:
    """Slots, ``block * block_size + offset``, of ``positions`` (any shape) of one request.

    ``fills_right`` may differ by position, and ``block_table`` may be many tables end to end whose starts are in the
    positions already. Raises IndexError where the table does not reach."""
    offsets = positions % block_size
    firsts = block_table[positions // block_size] * block_size
    slots: Ints = firsts + np.where(fills_right, block_size - 1 - offsets, offsets)
    return slots


class Scheduled(Protocol):
    """One sequence's share of a step: at least one token, and blocks for all its tokens so far."""

    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def block_table(self) -> list[int]: ...
    @property
    def fills_right(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The sequences of a step, their new tokens flattened in one row of ``num_tokens``."""

    block_size: int
    num_decodes: int  # sequences that lead the batch with one new token each; the others are chunks
    num_new: Ints  # [num_sequences]
    num_computed: Ints  # [num_sequences]
    blocks: Ints  # the sequences' tables end to end, each cut to the blocks that its tokens need
    table_ends: Ints  # [num_sequences], one past each sequence's last block in ``blocks``
    fills_right: npt.NDArray[np.bool_]  # [num_sequences]
    positions: Ints  # [num_tokens]
    slot_mapping: Ints  # [num_tokens]

    @classmethod
    def of(cls, sequences: Sequence[Scheduled], num_pool_blocks: int, block_size: int) -> StepLayout:
        """Raises ValueError if a sequence has no token, or not the blocks it needs."""
        num_new = np.array([len(sequence.token_ids) for sequence in sequences])
        computed = np.array([sequence.num_computed_tokens for sequence in sequences])
        fills_right = np.array([sequence.fills_right for sequence in sequences])
        counts = -(-(computed + num_new) // block_size)
        if num_new.min() < 1 or any(len(s.block_table) < count for s, count in zip(sequences, counts, strict=True)):
            raise ValueError("a sequence has no token, or its block table does not cover its tokens")
        used = (itertools.islice(s.block_table, count) for s, count in zip(sequences, counts.tolist(), strict=True))
        all_blocks = np.fromiter(itertools.chain.from_iterable(used), np.int64, int(counts.sum()))
        if all_blocks.min() < 0 or all_blocks.max() >= num_pool_blocks:
            raise ValueError(f"a block id is outside the pool of {num_pool_blocks} blocks")
        return cls.of_arrays(num_new, computed, all_blocks, fills_right, block_size)

    @classmethod
    def of_arrays(
        cls, num_new: Ints, computed: Ints, all_blocks: Ints, fills_right: npt.NDArray[np.bool_], block_size: int
    ) -> StepLayout:
        """``all_blocks``: the tables end to end, each with just the blocks that its sequence's tokens need. The others
        are [num_sequences]; each sequence has a new token at least."""
        counts = -(-(computed + num_new) // block_size)
        table_ends = np.cumsum(counts)
        ends = np.cumsum(num_new)
        positions = np.arange(ends[-1]) + np.repeat(computed - (ends - num_new), num_new)
        in_all_blocks = positions + np.repeat((table_ends - counts) * block_size, num_new)
        slots = slots_of(all_blocks, in_all_blocks, block_size, np.repeat(fills_right, num_new))
        num_decodes = int(np.argmax(num_new > 1)) if (num_new > 1).any() else len(num_new)
        return cls(block_size, num_decodes, num_new, computed, all_blocks, table_ends, fills_right, positions, slots)

    @property
    def seq_lens(self) -> Ints:
        """[num_sequences], KV tokens that each sequence's last new token reads, its own included."""
        return self.num_computed + self.num_new

    def stacked_tables(self) -> npt.NDArray[np.int32]:
        """[num_sequences, longest table]; 0 behind a shorter one."""
        counts = np.diff(self.table_ends, prepend=0)
        stacked = np.zeros((len(counts), counts.max()), np.int32)
        stacked[np.arange(stacked.shape[1]) < counts[:, None]] = self.blocks
        return stacked

    @property
    def row_ends(self) -> Ints:
        """[num_sequences], one past the row of each sequence's last new token."""
        return np.cumsum(self.num_new)
