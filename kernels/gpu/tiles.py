"""How attention is cut into programs: tile shapes by head size and dtype, the tiles of chunks, splits of the KV."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

MAX_SPLITS = 64
MIN_SPLIT_KEYS = 256  # below that, a split's start and its part of the reduction cost more than it saves
LARGE_SHARED_BYTES = 160 << 10  # of the data center's GPUs; the others have 99 KiB
GOOD_FILL = 0.85  # of the best fill of the last wave that any number of splits gives


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the cut depends on."""

    num_sms: int  # streaming multiprocessors
    shared_bytes: int  # that one program may take


@dataclass(frozen=True, slots=True)
class TileShape:
    """One program's work, and how Triton compiles it."""

    rows: int  # query rows: tokens times the query heads of one KV head
    keys: int  # KV positions of one turn of the loop
    num_warps: int
    kv_buffers: int  # turns whose keys and values are on their way or in use
    programs_per_sm: int  # that an SM holds at a time, by registers and shared memory

    @property
    def num_stages(self) -> int:
        """Block ids are loaded ahead of the KV that they lead to: Triton gives half of its stages to each."""
        return 2 * self.kv_buffers + 1


@dataclass(frozen=True, slots=True)
class FusedShapes:
    """Of decodes and chunks in one launch: with as many warps and stages, and each with its part of an SM's places."""

    decode: TileShape
    chunk: TileShape


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one launch over rows [first_row, first_row + num_rows) of the flattened batch."""

    count: int
    sequences: torch.Tensor | None  # [count], int32, on the device; None: tile i is sequence i with its one new token
    first_tokens: torch.Tensor | None  # [count], int32, counted from the sequence's first new token
    first_row: int
    num_rows: int
    max_kv_len: int
    max_tile_tokens: int

    def choose_num_splits(self, num_kv_heads: int, window: int | None, shape: TileShape, num_sms: int) -> int:
        """Into how many parts the KV of each is cut."""
        longest = min(self.max_kv_len, window + self.max_tile_tokens - 1) if window else self.max_kv_len
        return choose_num_splits(self.count * num_kv_heads, longest, shape, num_sms)


def decode_tile_shape(group_size: int, head_dim: int, dtype: torch.dtype, shared_bytes: int) -> TileShape:
    """For one new token a sequence: bound by memory, so few rows and many bytes of KV on their way.

    These shapes, and those of chunks, fit the shared memory of every GPU from compute capability 8.0 on, float32 with
    heads of more than 256 that of the data center's alone. ptxas compiles them for 8.0 and 9.0 without spilling
    registers; float32 at head size 256 spills a little, beyond it much. Of 27 shapes of decodes and 36 of chunks, in
    bfloat16 with heads of 64 and 128, they are the fastest on an H100, or within 3% of it.
    """
    rows = max(16, 1 << (group_size - 1).bit_length())
    if dtype == torch.float32:
        return TileShape(rows, 32, 4, 2, 2) if head_dim <= 128 else TileShape(rows, 16, 4, 1, 2)
    if 64 < head_dim <= 128 and shared_bytes >= LARGE_SHARED_BYTES:
        return TileShape(rows, 128, 4, 2, 1)
    keys = 128 if head_dim <= 64 else 64 if head_dim <= 128 else 32 if head_dim <= 256 else 16
    return TileShape(rows, keys, 4, 2, 2)


def chunk_tile_shape(group_size: int, head_dim: int, dtype: torch.dtype, shared_bytes: int) -> TileShape:
    """For prefill chunks: bound by arithmetic, so many rows for each key that is loaded."""
    least = 1 << (group_size - 1).bit_length()
    if dtype == torch.float32:
        return TileShape(max(32, least), 32, 4, 1, 2) if head_dim <= 128 else TileShape(max(16, least), 16, 4, 1, 2)
    if head_dim <= 64:
        return TileShape(max(64, least), 128, 4, 2, 1)
    if head_dim <= 128:
        return TileShape(max(128, least), 64, 8, 2, 1)
    is_large = shared_bytes >= LARGE_SHARED_BYTES
    if head_dim <= 256:
        return TileShape(max(64, least), 32, 8, 2 if is_large else 1, 1)
    return TileShape(max(64, least), 16, 8, 2, 1) if is_large else TileShape(max(32, least), 16, 8, 1, 1)


def fused_tile_shapes(group_size: int, head_dim: int, dtype: torch.dtype, shared_bytes: int) -> FusedShapes | None:
    """For decodes and chunks in one launch: the largest of which an SM holds two programs at least, so that one of each
    kind has its place. None where there are none such; the two kinds are then launches of their own."""
    least, is_large = 1 << (group_size - 1).bit_length(), shared_bytes >= LARGE_SHARED_BYTES
    if dtype == torch.float32:
        rows, fits = 32, head_dim <= 64 or (head_dim <= 128 and is_large)
        decode_keys, chunk_keys, kv_buffers = (64, 32, 1) if head_dim <= 64 else (32, 32, 1)
    else:
        rows, fits = 64, head_dim <= 128 or (head_dim <= 256 and is_large)
        decode_keys, chunk_keys, kv_buffers = (64, 32, 2) if head_dim <= 128 else (32, 16, 2)
        if head_dim > 64 and not is_large:
            kv_buffers = 1
    if not fits or least > rows:
        return None
    return FusedShapes(
        TileShape(max(16, least), decode_keys, 4, kv_buffers, 1), TileShape(rows, chunk_keys, 4, kv_buffers, 1)
    )


def cut_chunks(
    num_new: npt.NDArray[np.int64], num_computed: npt.NDArray[np.int64], tile_tokens: int
) -> npt.NDArray[np.int32]:
    """[2, num_tiles]: sequence and first new token of each tile; most KV first, so that no long tile starts last."""
    counts = -(-num_new // tile_tokens)
    sequences = np.repeat(np.arange(len(num_new)), counts)
    first_tokens = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_tokens
    order = np.argsort(-(num_computed[sequences] + first_tokens), kind="stable")
    return np.stack((sequences[order], first_tokens[order])).astype(np.int32)


def choose_num_splits(num_programs: int, max_kv_len: int, shape: TileShape, num_sms: int) -> int:
    """Into how many parts the KV of each tile is cut, so that ``num_programs`` tiles fill ``num_sms`` SMs: the fewest
    whose last wave is nearly as full as that of the best number (as flash-decoding chooses)."""
    places = num_sms * shape.programs_per_sm
    most = min(MAX_SPLITS, max_kv_len // max(MIN_SPLIT_KEYS, shape.keys))
    if most <= 1 or num_programs >= GOOD_FILL * places:
        return 1
    counts = [num_programs * splits for splits in range(1, most + 1)]
    fills = [count / (-(-count // places) * places) for count in counts]  # of its waves, in (0, 1]
    return next(i for i, fill in enumerate(fills, start=1) if fill >= GOOD_FILL * max(fills))
