"""Causal attention of a flattened batch over paged KV blocks, for any mix of prefill chunks and decodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cpu.attention import GatherBuffer
from kernels.cpu.attention import attend as attend_gathered
from kernels.cpu.batch import GatheredBatch
from kernels.gpu.batch import PagedBatch
from kernels.slots import StepLayout


@dataclass(slots=True)
class AttentionMetadata:
    """What attention needs to know of one step, computed once and used by every layer."""

    position_ids: torch.Tensor  # [num_tokens], int64, on the device
    slot_mapping: torch.Tensor  # likewise
    batch: GatheredBatch | PagedBatch  # how attention reads the KV

    @property
    def is_paged(self) -> bool:
        """Whether the Triton kernels serve the step."""
        return isinstance(self.batch, PagedBatch)

    @classmethod
    def of(
        cls, layout: StepLayout, kv_cache: torch.Tensor, paged: bool | None = None, fused: bool = False
    ) -> AttentionMetadata:
        """``kv_cache``: one layer's, for its shape and device. Any order gives the same results, decodes first and by
        length tight groups. ``paged``: for the Triton kernels; None is as the device needs it.
        ``fused``: these take decodes and chunks in one launch."""
        if paged or (paged is None and kv_cache.is_cuda):
            batch, position_ids, slot_mapping = PagedBatch.build(layout, kv_cache.device, fused)
            return cls(position_ids, slot_mapping, batch)
        positions, slots = torch.from_numpy(layout.positions), torch.from_numpy(layout.slot_mapping)
        return cls(positions, slots, GatheredBatch.build(layout, kv_cache[0].nbytes))


def paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    buffer: GatherBuffer,
    window: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend ``query`` [num_tokens, num_heads, k_dim] over ``kv_cache`` (layout in kv_write), whose slots of this
    step are written already. Returns [num_tokens, num_heads, v_dim], contiguous.

    Query head h reads KV head ``h // (num_heads // num_kv_heads)``. A query at position p reads (p - window, p]. No
    slot but a sequence's own reaches its result, whatever the others hold. The metadata says whose kernels serve.
    ``out``: where the result shall lie."""
    if isinstance(metadata.batch, GatheredBatch):
        attended = attend_gathered(query, kv_cache, metadata.batch, scale, buffer, window)
        return attended if out is None else out.copy_(attended)
    from kernels.gpu.attention import attend  # Triton is not there on every machine that has no GPU

    return attend(query, kv_cache, metadata.batch, scale, window, out=out)
