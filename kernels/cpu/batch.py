"""A step as the CPU reads it: what is gathered from the blocks for each attention call, and what is masked.

Decodes are read where they lie (``kernels.cpu.decodes``), or those of similar length share one call, padded to the
longest of the group; each chunk is a call of its own. Whole blocks are gathered where their order does not matter,
since that is the fastest copy, and the slots in them that are not the sequence's own are overwritten: a mask adds to
what was multiplied before, and NaN plus -inf is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels.slots import Ints, slots_of
from kernels.step_layout import StepLayout

GATHER_BYTES = 4 << 20  # KV of one decode group: small enough to be still in cache when attention reads it
MAX_PADDING = 1.5  # a group's longest sequence over its shortest


@dataclass(frozen=True, slots=True)
class Gather:
    """What to copy out of a layer's blocks. Slots are rows of the copy and of the KV cache, both flattened."""

    rows: torch.Tensor  # block ids, or slots, int64
    by_slot: bool
    patched: torch.Tensor | None = None  # slots of the copy that are overwritten
    patches: torch.Tensor | None = None  # by which slots of the KV cache


@dataclass(frozen=True, slots=True)
class Reads:
    """The KV of one attention call, and which of it each query row reads."""

    gather: Gather
    num_keys: int  # of each sequence, padding included
    visible: npt.NDArray[np.bool_] | None  # [num_rows, num_keys]; None: every row reads every key
    first_key: int = 0  # where keys begin in the copy of a chunk

    def mask(self, like: torch.Tensor) -> torch.Tensor | None:
        """Additive [num_rows, num_keys]."""
        if self.visible is None:
            return None
        mask = torch.zeros(self.visible.shape, dtype=like.dtype)
        return mask.masked_fill_(torch.from_numpy(~self.visible), float("-inf"))


@dataclass(slots=True)
class DecodeGroup:
    """Decodes that run as one attention call. Rows [start, end) of the flattened batch."""

    start: int
    end: int
    block_size: int
    tables: Ints  # [num_rows, most blocks], padded with each row's first block
    seq_lens: Ints  # [num_rows], KV tokens that each row reads, its own included
    fills_right: npt.NDArray[np.bool_]  # [num_rows]
    calls: dict[int | None, tuple[Reads, torch.Tensor | None]] = field(default_factory=dict)

    def call(self, window: int | None, like: torch.Tensor) -> tuple[Reads, torch.Tensor | None]:
        """What to read and its mask, additive [num_rows, num_keys], made once for each sliding window."""
        if window not in self.calls:
            narrow = window is not None and window < self.seq_lens.max()
            reads = self._windowed(window or 0) if narrow else self._whole()
            self.calls[window] = (reads, reads.mask(like))
        return self.calls[window]

    def _whole(self) -> Reads:
        """Softmax does not mind the order of keys: the whole blocks as they lie, their last one put in order."""
        most = int(self.seq_lens.max())
        lens = self.seq_lens[:, None]
        whole = lens // self.block_size * self.block_size  # [num_rows, 1], tokens in full blocks
        key = np.arange(whole.min(), most)[None, :]
        row = np.arange(len(self.seq_lens))[:, None]
        gathered = self.tables[row, key // self.block_size] * self.block_size + key % self.block_size
        own = self._slots(np.minimum(key, lens - 1))
        # Behind a table's last block lies a copy of its first one, which holds nothing foreign if it is full.
        in_table = key < -(-lens // self.block_size) * self.block_size
        at_row, at_key = np.nonzero((key >= whole) & (in_table | (whole == 0)) & (gathered != own))
        blocks = torch.from_numpy(self.tables.reshape(-1))
        if len(at_row):
            patched = at_row * self.tables.shape[1] * self.block_size + at_key + whole.min()
            gather = Gather(blocks, False, torch.from_numpy(patched), torch.from_numpy(own[at_row, at_key]))
        else:
            gather = Gather(blocks, False)
        return Reads(gather, most, _unless_all(np.arange(most) < lens))

    def _windowed(self, window: int) -> Reads:
        """Only the slots that the window shows."""
        counts = np.minimum(self.seq_lens, window)[:, None]
        key = np.arange(counts.max())[None, :]
        position = self.seq_lens[:, None] - counts + np.minimum(key, counts - 1)
        gather = Gather(torch.from_numpy(self._slots(position).reshape(-1)), True)
        return Reads(gather, key.shape[1], _unless_all(key < counts))

    def _slots(self, positions: Ints) -> Ints:
        """Of ``positions`` [num_rows, any]."""
        starts = np.arange(len(self.tables))[:, None] * self.tables.shape[1] * self.block_size
        return slots_of(self.tables.reshape(-1), starts + positions, self.block_size, self.fills_right[:, None])


@dataclass(slots=True)
class Decodes:
    """The sequences that lead the batch with one token each, in the two ways that they can be read."""

    block_size: int
    tables: list[Ints]  # of each row
    seq_lens: Ints  # [num_rows], KV tokens that each row reads, its own included
    fills_right: npt.NDArray[np.bool_]  # [num_rows]
    bytes_per_block: int  # of one layer
    _groups: list[DecodeGroup] | None = None
    _joined: tuple[Ints, Ints] | None = None

    @property
    def groups(self) -> list[DecodeGroup]:
        """For gathering."""
        if self._groups is None:
            bounds = _group_bounds([len(table) for table in self.tables], self.bytes_per_block)
            self._groups = [
                DecodeGroup(
                    start,
                    end,
                    self.block_size,
                    _padded(self.tables[start:end]),
                    self.seq_lens[start:end],
                    self.fills_right[start:end],
                )
                for start, end in bounds
            ]
        return self._groups

    @property
    def joined(self) -> tuple[Ints, Ints]:
        """The tables end to end, and where in them each row's begins."""
        if self._joined is None:
            lens = np.array([len(table) for table in self.tables], np.int64)
            self._joined = np.concatenate(self.tables), np.cumsum(lens) - lens
        return self._joined


@dataclass(slots=True)
class Chunk:
    """One sequence's new tokens, rows [start, end), at positions [num_computed, num_computed + end - start)."""

    start: int
    end: int
    block_size: int
    table: Ints  # [num_blocks]
    fills_right: bool
    num_computed: int
    cached_reads: dict[int | None, Reads] = field(default_factory=dict)  # by sliding window
    cached_masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return self.num_computed + self.end - self.start

    def is_plain_causal(self, window: int | None) -> bool:
        """Row i reads exactly the tokens [0, i]: attention kernels need no mask for that."""
        return self.num_computed == 0 and self.reads_all(window)

    def reads_all(self, window: int | None) -> bool:
        """Each token reads every token before it."""
        return window is None or window >= self.seq_len

    def reads(self, window: int | None) -> Reads:
        """Made once for each sliding window."""
        if window not in self.cached_reads:
            self.cached_reads[window] = self._reads(window)
        return self.cached_reads[window]

    def mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """Additive [num_rows, num_keys], made once for each sliding window."""
        if window not in self.cached_masks:
            self.cached_masks[window] = None if self.is_plain_causal(window) else self.reads(window).mask(like)
        return self.cached_masks[window]

    def _reads(self, window: int | None) -> Reads:
        first = 0 if window is None else max(0, self.num_computed - window + 1)
        position = np.arange(first, self.seq_len)
        visible = _visible(np.arange(self.num_computed, self.seq_len)[:, None], position, window)
        if self.fills_right:
            slots = slots_of(self.table, position, self.block_size, True)
            return Reads(Gather(torch.from_numpy(slots), True), len(position), _unless_all(visible))
        blocks = torch.from_numpy(self.table[first // self.block_size :])
        return Reads(Gather(blocks, False), len(position), _unless_all(visible), first % self.block_size)


@dataclass(slots=True)
class GatheredBatch:
    """One step's attention calls."""

    decodes: Decodes
    chunks: list[Chunk]

    @classmethod
    def build(cls, layout: StepLayout, bytes_per_block: int) -> GatheredBatch:
        """``bytes_per_block``: of one layer."""
        ends, lens, count = layout.row_ends, layout.seq_lens, layout.num_decodes
        chunks = [
            Chunk(
                int(ends[i] - layout.num_new[i]),
                int(ends[i]),
                layout.block_size,
                layout.tables[i],
                bool(layout.fills_right[i]),
                int(layout.num_computed[i]),
            )
            for i in range(count, len(ends))
        ]
        decodes = Decodes(
            layout.block_size, layout.tables[:count], lens[:count], layout.fills_right[:count], bytes_per_block
        )
        return cls(decodes, chunks)


def _group_bounds(num_blocks: list[int], bytes_per_block: int) -> Iterator[tuple[int, int]]:
    """Cut rows into half-open ranges, each within the padding and the gather size allowed."""
    start, low, high = 0, 0, 0
    for row, count in enumerate(num_blocks):
        new_low, new_high = (min(low, count), max(high, count)) if row > start else (count, count)
        gathered = new_high * (row - start + 1) * bytes_per_block
        if row > start and (new_high > new_low * MAX_PADDING + 1 or gathered > GATHER_BYTES):
            yield start, row
            start, new_low, new_high = row, count, count
        low, high = new_low, new_high
    if num_blocks:
        yield start, len(num_blocks)


def _padded(tables: list[Ints]) -> Ints:
    """[num_tables, longest], each padded with its own first block."""
    padded = np.empty((len(tables), max(len(table) for table in tables)), np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
        row[len(table) :] = table[0]
    return padded


def _visible(last: Ints, position: Ints, window: int | None) -> npt.NDArray[np.bool_]:
    """Which KV positions a query at position ``last`` reads: (last - window, last]."""
    visible: npt.NDArray[np.bool_] = position <= last
    return visible if window is None else visible & (position > last - window)


def _unless_all(visible: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return None if visible.all() else visible
