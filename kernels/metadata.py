"""What attention needs to know of one step, computed once and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cpu.batch import GatheredBatch
from kernels.gpu.batch import PagedBatch
from kernels.slots import Ints
from kernels.step_layout import StepLayout


@dataclass(slots=True)
class AttentionMetadata:
    """One step. ``position_ids`` and ``slot_mapping`` are [num_tokens], int64, on the device."""

    position_ids: torch.Tensor
    slot_mapping: torch.Tensor
    last_rows: Ints  # [num_sequences], the row of each sequence's last token
    batch: GatheredBatch | PagedBatch  # how attention reads the KV

    @property
    def is_paged(self) -> bool:
        """Whether the Triton kernels serve the step."""
        return isinstance(self.batch, PagedBatch)

    @classmethod
    def of(cls, layout: StepLayout, kv_cache: torch.Tensor, paged: bool | None = None) -> AttentionMetadata:
        """``kv_cache`` is one layer's, for its shape and device. Decodes first and by length give tight groups; any
        order gives the same results. ``paged``: for the Triton kernels, which read the blocks where they lie; None is
        as the device needs it."""
        last_rows = layout.row_ends - 1
        if paged or (paged is None and kv_cache.is_cuda):
            batch, position_ids, slot_mapping = PagedBatch.build(layout, kv_cache.device)
            return cls(position_ids, slot_mapping, last_rows, batch)
        positions, slots = torch.from_numpy(layout.positions), torch.from_numpy(layout.slot_mapping)
        return cls(positions, slots, last_rows, GatheredBatch.build(layout, kv_cache[0].nbytes))
