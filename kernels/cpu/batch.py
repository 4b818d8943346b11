"""A step as the CPU reads it: which slots are gathered for each attention call, and what is masked.

Decodes and short chunks are read where they lie, each token by itself (``kernels.cpu.row_attention``). Where that does
not suit the KV cache, decodes of similar length share one call, padded to the longest; each other chunk is a call of
its own. Only a sequence's own slots are gathered: NaN plus a mask's -inf is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels.slots import Ints, StepLayout, slots_of

GATHER_BYTES = 4 << 20  # KV of one decode group: small enough to be still in cache when attention reads it
MAX_ROWS, MAX_ROW_KEYS = 8, 256  # new tokens of a sequence, and all that the last of them reads
MAX_PADDING = 1.5  # a group's longest sequence over its shortest


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens that are computed one by one."""

    block_size: int
    tables: Ints  # of the step's sequences, end to end
    numbers: Ints  # [num_rows], which of the step's tokens they are
    starts: Ints  # [num_rows], where in ``tables`` that of each one's sequence begins
    seq_lens: Ints  # [num_rows], KV tokens that each reads, its own included
    fills_right: npt.NDArray[np.bool_]  # [num_rows]
    num_keys: int  # that all of them read

    @classmethod
    def of(cls, layout: StepLayout, in_rows: npt.NDArray[np.bool_]) -> Rows:
        """Those of the sequences that ``in_rows`` [num_sequences] tells."""
        numbers = np.flatnonzero(np.repeat(in_rows, layout.num_new))
        starts = np.concatenate(([0], layout.table_ends[:-1]))
        seq_lens = layout.positions[numbers] + 1
        return cls(
            layout.block_size,
            layout.blocks,
            numbers,
            np.repeat(starts, layout.num_new)[numbers],
            seq_lens,
            np.repeat(layout.fills_right, layout.num_new)[numbers],
            int(seq_lens.sum()),
        )


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes that run as one attention call: rows [start, end) of the flattened batch."""

    start: int
    end: int
    slots: torch.Tensor  # [num_rows * num_keys], int64; behind a row's own, its last one is repeated
    mask: torch.Tensor | None  # additive [num_rows, num_keys]; None: every row reads every key


@dataclass(slots=True)
class Decodes:
    """The sequences that lead the batch with one token each."""

    block_size: int
    tables: Ints  # of all rows, end to end
    starts: Ints  # [num_rows], where in ``tables`` each row's begins
    seq_lens: Ints  # [num_rows], KV tokens that each row reads, its own included
    fills_right: npt.NDArray[np.bool_]  # [num_rows]
    bytes_per_block: int  # of one layer
    _groups: dict[int | None, list[DecodeGroup]] = field(default_factory=dict)  # by sliding window

    def groups(self, window: int | None, like: torch.Tensor) -> list[DecodeGroup]:
        """For gathering, made once for each sliding window."""
        if window not in self._groups:
            num_blocks = -(-self.seq_lens // self.block_size)
            bounds = _group_bounds(num_blocks.tolist(), self.bytes_per_block)
            self._groups[window] = [self._group(start, end, window, like) for start, end in bounds]
        return self._groups[window]

    def _group(self, start: int, end: int, window: int | None, like: torch.Tensor) -> DecodeGroup:
        lens = self.seq_lens[start:end, None]
        counts = lens if window is None else np.minimum(lens, window)
        key = np.arange(counts.max())
        position = lens - counts + np.minimum(key, counts - 1) + self.starts[start:end, None] * self.block_size
        slots = slots_of(self.tables, position, self.block_size, self.fills_right[start:end, None])
        return DecodeGroup(start, end, torch.from_numpy(slots.reshape(-1)), _mask(key < counts, like))


@dataclass(slots=True)
class Chunk:
    """One sequence's new tokens, rows [start, end), at positions [num_computed, num_computed + end - start)."""

    start: int
    end: int
    block_size: int
    table: Ints  # [num_blocks]
    fills_right: bool
    num_computed: int
    _slots: dict[int | None, torch.Tensor] = field(default_factory=dict)  # by sliding window
    _masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return self.num_computed + self.end - self.start

    def is_plain_causal(self, window: int | None) -> bool:
        """Row i reads exactly the tokens [0, i]: attention kernels need no mask for that."""
        return self.num_computed == 0 and self.reads_all(window)

    def reads_all(self, window: int | None) -> bool:
        """Each token reads every token before it."""
        return window is None or window >= self.seq_len

    def slots(self, window: int | None) -> torch.Tensor:
        """[num_keys], int64, in order of position, made once for each sliding window."""
        if window not in self._slots:
            slots = slots_of(self.table, self._read(window), self.block_size, self.fills_right)
            self._slots[window] = torch.from_numpy(slots)
        return self._slots[window]

    def mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """Additive [num_rows, num_keys], made once for each sliding window."""
        if self.is_plain_causal(window):
            return None
        if window not in self._masks:
            position, last = self._read(window), np.arange(self.num_computed, self.seq_len)[:, None]
            since_start = position <= last
            visible = since_start if window is None else since_start & (position > last - window)
            self._masks[window] = _mask(visible, like)
        return self._masks[window]

    def _read(self, window: int | None) -> Ints:
        """Positions that some row reads."""
        return np.arange(0 if window is None else max(0, self.num_computed - window + 1), self.seq_len)


@dataclass(slots=True)
class GatheredBatch:
    """One step's attention calls, for KV caches that rows suit and for others."""

    rows: Rows  # of all decodes, and of chunks as ``is_read_in_rows`` says
    other_chunks: list[Chunk]  # that ``rows`` lacks
    decodes: Decodes
    chunks: list[Chunk]

    @classmethod
    def build(cls, layout: StepLayout, bytes_per_block: int) -> GatheredBatch:
        """``bytes_per_block``: of one layer."""
        size, ends, count = layout.block_size, layout.row_ends.tolist(), layout.num_decodes
        directions, computed = layout.fills_right.tolist(), layout.num_computed.tolist()
        starts = np.concatenate(([0], layout.table_ends))
        chunks = [
            Chunk(
                ends[i] - int(layout.num_new[i]),
                ends[i],
                size,
                layout.blocks[starts[i] : starts[i + 1]],
                directions[i],
                computed[i],
            )
            for i in range(count, len(ends))
        ]
        tables, right = layout.blocks[: starts[count]], layout.fills_right[:count]
        decodes = Decodes(size, tables, starts[:count], layout.seq_lens[:count], right, bytes_per_block)
        in_rows = is_read_in_rows(layout.num_new, layout.seq_lens)
        others = [chunk for chunk, is_in_rows in zip(chunks, in_rows[count:], strict=True) if not is_in_rows]
        return cls(Rows.of(layout, in_rows), others, decodes, chunks)


def is_read_in_rows(num_new: Ints, seq_lens: Ints) -> npt.NDArray[np.bool_]:
    """[num_sequences], whether a sequence's new tokens are best computed one by one. Each reads all its keys anew,
    which costs little while they are in a cache near by, or few do."""
    return (num_new <= MAX_ROWS) | (seq_lens <= MAX_ROW_KEYS)


def _group_bounds(num_blocks: list[int], bytes_per_block: int) -> Iterator[tuple[int, int]]:
    """Cut rows into half-open ranges, each within the padding and the gather size allowed."""
    start, low, high = 0, math.inf, 0
    for row, count in enumerate(num_blocks):
        low, high = min(low, count), max(high, count)
        gathered = high * (row - start + 1) * bytes_per_block
        if row > start and (high > low * MAX_PADDING + 1 or gathered > GATHER_BYTES):
            yield start, row
            start, low, high = row, count, count
    if num_blocks:
        yield start, len(num_blocks)


def _mask(visible: npt.NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor | None:
    """Additive; None where all is visible."""
    if visible.all():
        return None
    return torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(torch.from_numpy(~visible), float("-inf"))
