"""What attention needs to know of one step, computed once and used by every layer.

Queries are flattened: the new tokens of all sequences in one row of ``num_tokens``. The single-token sequences that
lead the batch are decodes and run in groups, padded to the longest of the group; each other sequence is a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

GATHER_BYTES = 4 << 20  # KV of one decode group: small enough to be still in cache when attention reads it
MAX_PADDING = 1.5  # a group's longest sequence over its shortest


class Scheduled(Protocol):
    """One sequence's share of a step: at least one token, and blocks for all its tokens so far."""

    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def block_table(self) -> list[int]: ...


@dataclass(slots=True)
class DecodeGroup:
    """Decodes that run as one attention call. Rows [start, end) of the flattened batch."""

    start: int
    end: int
    blocks: torch.Tensor  # [num_rows * blocks_per_row], int64
    seq_lens: npt.NDArray[np.int64]  # [num_rows], KV tokens that each row reads, its own included
    max_seq_len: int
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """Additive [num_rows, 1, 1, max_seq_len], made once for each sliding window; None if every row reads all."""
        if window not in self.masks:
            position = np.arange(self.max_seq_len)
            last = self.seq_lens[:, None] - 1
            self.masks[window] = _additive(_visible(last, position, window)[:, None, None, :], like)
        return self.masks[window]


@dataclass(slots=True)
class Chunk:
    """One sequence's new tokens, rows [start, end), at positions [num_computed, num_computed + end - start)."""

    start: int
    end: int
    blocks: torch.Tensor  # [num_blocks], int64
    num_computed: int
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return self.num_computed + self.end - self.start

    def is_plain_causal(self, window: int | None) -> bool:
        """Row i reads exactly the tokens [0, i]: attention kernels need no mask for that."""
        return self.num_computed == 0 and (window is None or window >= self.seq_len)

    def mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """Additive [num_rows, seq_len], made once for each sliding window; None if every row reads all."""
        if window not in self.masks:
            last = np.arange(self.num_computed, self.seq_len)[:, None]
            self.masks[window] = _additive(_visible(last, np.arange(self.seq_len), window), like)
        return self.masks[window]


@dataclass(slots=True)
class AttentionMetadata:
    """One step. ``position_ids`` and ``slot_mapping`` are [num_tokens], int64, on the device."""

    position_ids: torch.Tensor
    slot_mapping: torch.Tensor
    last_rows: npt.NDArray[np.int64]  # [num_sequences], the row of each sequence's last token
    decode_groups: list[DecodeGroup]
    chunks: list[Chunk]

    @classmethod
    def build(
        cls,
        sequences: Sequence[Scheduled],
        kv_cache: torch.Tensor,
    ) -> AttentionMetadata:
        """``kv_cache`` is one layer's, for its shape and device. Sort decodes first and by length for tight groups;
        any order gives the same results. Raises ValueError if a sequence has no token, or not the blocks it needs."""
        num_pool_blocks, block_size = kv_cache.shape[:2]
        device = kv_cache.device
        num_new = np.array([len(sequence.token_ids) for sequence in sequences])
        ends = np.cumsum(num_new)
        computed = np.array([sequence.num_computed_tokens for sequence in sequences])
        positions = np.arange(ends[-1]) + np.repeat(computed - (ends - num_new), num_new)
        num_blocks = -(-(computed + num_new) // block_size)
        tables = [np.array(s.block_table[:count]) for s, count in zip(sequences, num_blocks.tolist(), strict=True)]
        if num_new.min() < 1 or any(len(t) != count for t, count in zip(tables, num_blocks.tolist(), strict=True)):
            raise ValueError("a sequence has no token, or its block table does not cover its tokens")
        first_blocks = np.cumsum([0] + [len(table) for table in tables[:-1]])
        all_blocks = np.concatenate(tables)
        if all_blocks.min() < 0 or all_blocks.max() >= num_pool_blocks:
            raise ValueError(f"a block id is outside the pool of {num_pool_blocks} blocks")
        block_ids = all_blocks[np.repeat(first_blocks, num_new) + positions // block_size]
        num_decodes = int(np.argmax(num_new > 1)) if (num_new > 1).any() else len(sequences)
        chunks = [
            Chunk(int(ends[i] - num_new[i]), int(ends[i]), _to_device(tables[i], device), int(computed[i]))
            for i in range(num_decodes, len(sequences))
        ]
        groups = [
            _decode_group(start, computed[start:end] + 1, tables[start:end], device)
            for start, end in _group_bounds([len(table) for table in tables[:num_decodes]], kv_cache[0].nbytes)
        ]
        slot_mapping = block_ids * block_size + positions % block_size
        return cls(_to_device(positions, device), _to_device(slot_mapping, device), ends - 1, groups, chunks)


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


def _decode_group(
    start: int, seq_lens: npt.NDArray[np.int64], tables: list[npt.NDArray[np.int64]], device: torch.device
) -> DecodeGroup:
    width = max(len(table) for table in tables)
    blocks = np.stack([np.pad(table, (0, width - len(table)), mode="edge") for table in tables]).reshape(-1)
    return DecodeGroup(start, start + len(tables), _to_device(blocks, device), seq_lens, int(seq_lens.max()))


def _visible(last: npt.NDArray[np.int64], position: npt.NDArray[np.int64], window: int | None) -> npt.NDArray[np.bool_]:
    """Which KV positions a query at position ``last`` reads: (last - window, last]."""
    visible: npt.NDArray[np.bool_] = position <= last
    return visible if window is None else visible & (position > last - window)


def _additive(visible: npt.NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor | None:
    if visible.all():
        return None
    mask = torch.zeros(visible.shape, dtype=like.dtype)
    return mask.masked_fill_(torch.from_numpy(~visible), float("-inf")).to(like.device)


def _to_device(array: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
