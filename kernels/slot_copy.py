"""Gather arbitrary KV slots of all layers into one contiguous buffer, and scatter them back: checkpoint and restore.

A row of the buffer is one slot with all its layers, so that a pool of rows on the host can give and take back any
number of slots. Between a GPU and pinned host memory the slots pass through a buffer on the device: the kernel runs at
the speed of device memory for microseconds, and one asynchronous copy then keeps a copy engine busy rather than the
SMs, which a kernel that wrote to the host itself would hold, beside attention, for as long as the bus takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose slots have the same size. They stand side by side in a row of the buffer."""

    pointers: torch.Tensor  # [num_layers], int64, where each layer's KV cache begins, on its device
    num_words: int  # of one slot of one layer
    first_word: int  # of the group in a row of the buffer


@dataclass(frozen=True, slots=True)
class KVLayers:
    """The KV caches of a model, prepared once for copying slots. Keeps them alive."""

    caches: tuple[torch.Tensor, ...]  # [num_blocks, block_size, num_kv_heads, k_dim + v_dim] each, in buffer order
    groups: tuple[LayerGroup, ...]
    word: torch.dtype  # what is copied at a time
    slot_values: int  # of one slot in all layers: the width of a buffer

    @classmethod
    def of(cls, kv_caches: Sequence[torch.Tensor]) -> KVLayers:
        """All of one dtype, on one device, contiguous. Layers with slots of one size are put side by side."""
        widths = [_slot_values(cache) for cache in kv_caches]
        size = kv_caches[0].element_size()
        word = next(word for word in WORDS if all(width * size % word.itemsize == 0 for width in widths))
        ordered, groups, first = [], [], 0
        for width in dict.fromkeys(widths):
            members = [cache for cache, own in zip(kv_caches, widths, strict=True) if own == width]
            pointers = torch.tensor([cache.data_ptr() for cache in members], dtype=torch.int64)
            num_words = width * size // word.itemsize
            groups.append(LayerGroup(pointers.to(kv_caches[0].device), num_words, first))
            first += num_words * len(members)
            ordered += members
        return cls(tuple(ordered), tuple(groups), word, sum(widths))

    def new_buffer(self, num_slots: int, device: torch.device | str | None = None) -> torch.Tensor:
        """[num_slots, slot_values], uninitialized; pinned where it is on the host of a GPU."""
        there = self.device if device is None else torch.device(device)
        pinned = there.type == "cpu" and self.device.type == "cuda"
        shape = (num_slots, self.slot_values)
        return torch.empty(shape, dtype=self.caches[0].dtype, device=there, pin_memory=pinned)

    @property
    def device(self) -> torch.device:
        return self.caches[0].device


def gather_slots(layers: KVLayers, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Copy ``slots`` [num_slots], int64, to the rows of ``out`` [num_slots, slot_values], on the layers' device or in
    pinned host memory. On a GPU this returns before the copy is done: record an event before reading ``out``."""
    if layers.device.type == "cpu":
        first = 0
        for cache in layers.caches:
            width = _slot_values(cache)
            torch.index_select(cache.view(-1, width), 0, slots, out=out[:, first : first + width])
            first += width
        return
    from kernels.gpu.slot_copy import gather_slots as gather_by_triton

    staging = out if out.is_cuda else layers.new_buffer(len(slots))
    gather_by_triton(layers, slots, staging)
    if staging is not out:
        out.copy_(staging, non_blocking=True)


def scatter_slots(layers: KVLayers, slots: torch.Tensor, buffer: torch.Tensor) -> None:
    """Copy the rows of ``buffer`` [num_slots, slot_values] to ``slots`` [num_slots], int64, all different: what
    ``gather_slots`` undone is. On a GPU this returns before ``buffer`` is read."""
    if layers.device.type == "cpu":
        first = 0
        for cache in layers.caches:
            width = _slot_values(cache)
            cache.view(-1, width).index_copy_(0, slots, buffer[:, first : first + width])
            first += width
        return
    from kernels.gpu.slot_copy import scatter_slots as scatter_by_triton

    scatter_by_triton(layers, slots, buffer.to(layers.device, non_blocking=True))


def _slot_values(kv_cache: torch.Tensor) -> int:
    return kv_cache.shape[2] * kv_cache.shape[3]
