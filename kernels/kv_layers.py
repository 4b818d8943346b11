"""The KV caches of a model's layers as one row of words a slot: what copying slots needs to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def columns(self, buffer: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of each layer its slots, [num_slots, values of one], and where they lie in the rows of ``buffer``: views."""
        slots = [cache.view(-1, _slot_values(cache)) for cache in self.caches]
        return zip(slots, torch.split(buffer, [layer.shape[1] for layer in slots], dim=1), strict=True)


def _slot_values(kv_cache: torch.Tensor) -> int:
    return kv_cache.shape[2] * kv_cache.shape[3]
