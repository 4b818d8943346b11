"""A step as the Triton kernels read it: block tables and lengths on the device, in one copy from the host."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.gpu.tiles import LARGE_SHARED_BYTES, Gpu, Tiles, cut_chunks
from kernels.slots import Ints, StepLayout

ALIGNMENT = 16  # bytes: Triton compiles a kernel anew for a pointer that is aligned otherwise
LAUNCHES = 64  # that counters are made for at a time: more than most models have layers


@dataclass(slots=True)
class PagedBatch:
    """One step's sequences; the first ``num_decodes`` have one new token each, the others are chunks."""

    block_tables: torch.Tensor  # [num_sequences, longest table], int32; what lies behind a shorter table is not read
    seq_lens: torch.Tensor  # [num_sequences], int32, the new tokens included
    query_start_loc: torch.Tensor  # [num_sequences + 1], int32, rows of the flattened batch
    fills_right: torch.Tensor | None  # [num_sequences], int32, 0 or 1; None where no sequence fills from the right
    gpu: Gpu
    num_decodes: int
    num_new: Ints  # [num_sequences], as the host knows it
    num_computed: Ints  # [num_sequences], likewise; of a decode the device may read less
    is_fused: bool = False  # whether decodes and chunks share a launch, where the GPU has room for that
    _chunk_tiles: dict[int, Tiles] = field(default_factory=dict)
    _counters: list[torch.Tensor] = field(default_factory=list)  # zeros, not yet handed out

    @classmethod
    def build(
        cls, layout: StepLayout, device: torch.device, is_fused: bool = False
    ) -> tuple[PagedBatch, torch.Tensor, torch.Tensor]:
        """Returns the batch, and position ids and slot mapping, [num_tokens], int64, from the same copy. Raises
        ValueError for a block size that is no power of two: direction flips the bits of offsets."""
        if layout.block_size & (layout.block_size - 1):
            raise ValueError(f"block size {layout.block_size} is no power of two")
        positions, slots, block_tables, seq_lens, starts, fills_right = upload(
            (
                layout.positions,
                layout.slot_mapping,
                layout.stacked_tables(),
                layout.seq_lens.astype(np.int32),
                np.concatenate(([0], layout.row_ends)).astype(np.int32),
                layout.fills_right.astype(np.int32),
            ),
            device,
        )
        directions = fills_right if layout.fills_right.any() else None
        counts = (layout.num_decodes, layout.num_new, layout.num_computed)
        return cls(block_tables, seq_lens, starts, directions, gpu_of(device), *counts, is_fused), positions, slots

    def decode_tiles(self) -> Tiles:
        """One tile a decode: its launch needs no table on the device."""
        count = self.num_decodes
        return Tiles(count, None, None, 0, count, int(self.num_computed[:count].max()) + 1, 1)

    def chunk_tiles(self, tile_tokens: int) -> Tiles:
        """The chunks in tiles of ``tile_tokens`` new tokens, cut once a step."""
        if tile_tokens not in self._chunk_tiles:
            first = self.num_decodes
            num_new, num_computed = self.num_new[first:], self.num_computed[first:]
            cut = cut_chunks(num_new, num_computed, tile_tokens)
            cut[0] += first
            sequences, first_tokens = upload((cut[0], cut[1]), self.seq_lens.device)
            longest = int((num_new + num_computed).max())
            self._chunk_tiles[tile_tokens] = Tiles(
                cut.shape[1], sequences, first_tokens, first, int(num_new.sum()), longest, tile_tokens
            )
        return self._chunk_tiles[tile_tokens]

    def new_counters(self) -> torch.Tensor:
        """[2 + num_sms or more], int32, zeros, for one fused launch. Made for many layers at a time."""
        if not self._counters:
            shape = (LAUNCHES, -(-(2 + self.gpu.num_sms) * 4 // ALIGNMENT) * ALIGNMENT // 4)
            self._counters = list(torch.zeros(shape, dtype=torch.int32, device=self.seq_lens.device))
        return self._counters.pop()


def upload(
    arrays: Sequence[npt.NDArray[np.int64] | npt.NDArray[np.int32]],
    device: torch.device,
    memory: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """``arrays`` on the device, by one copy from pinned memory that the host does not wait for. ``memory``: where they
    shall lie, one after the other; [num_bytes], uint8, as ``byte_starts`` says."""
    starts = byte_starts(arrays)
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = packed.numpy()
    for array, start in zip(arrays, starts, strict=False):
        host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True) if memory is None else memory.copy_(packed, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def byte_starts(arrays: Sequence[npt.NDArray[np.int64] | npt.NDArray[np.int32]]) -> list[int]:
    """Where ``upload`` puts each of ``arrays``; last, how many bytes it takes for all."""
    sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
    return list(itertools.accumulate(sizes, initial=0))


class StaticInputs:
    """Arrays on the device that lie in the same memory in each step, as recorded kernels read them. ``tensors``: of
    their shapes and dtypes, in their order."""

    def __init__(self, padding: Sequence[npt.NDArray[np.int64] | npt.NDArray[np.int32]], device: torch.device) -> None:
        """``padding``: what they hold at first, and behind what is loaded."""
        self._padding = padding
        self._memory = torch.empty(byte_starts(padding)[-1], dtype=torch.uint8, device=device)
        self.tensors = upload(padding, device, self._memory)

    def load(self, values: Sequence[npt.NDArray[Any]]) -> None:
        """Into the beginning of each, in place of all that was there; the host waits for nothing."""
        arrays = [padding.copy() for padding in self._padding]
        for array, new in zip(arrays, values, strict=True):
            array[: len(new)] = new
        upload(arrays, self._memory.device, self._memory)


@functools.cache
def gpu_of(device: torch.device) -> Gpu:
    """Triton's interpreter, on the CPU, runs one program after the other."""
    if device.type != "cuda":
        return Gpu(1, LARGE_SHARED_BYTES)
    properties: Any = torch.cuda.get_device_properties(device)
    return Gpu(properties.multi_processor_count, properties.shared_memory_per_block_optin)
