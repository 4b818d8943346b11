"""Causal attention of a flattened batch over paged KV blocks, for any mix of prefill chunks and decodes."""

import torch

from kernels.cpu.attention import GatherBuffer
from kernels.cpu.attention import attend as attend_gathered
from kernels.cpu.batch import GatheredBatch
from kernels.metadata import AttentionMetadata


def paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    buffer: GatherBuffer,
    window: int | None = None,
) -> torch.Tensor:
    """Attend ``query`` [num_tokens, num_heads, k_dim] over ``kv_cache`` (layout in kv_write), whose slots of this
    step are written already. Returns [num_tokens, num_heads, v_dim], contiguous.

    Query head h reads KV head ``h // (num_heads // num_kv_heads)``. A query at position p reads (p - window, p]. No
    slot but a sequence's own reaches its result, whatever the others hold. Gathered and in plain torch on the CPU, by
    Triton's kernels elsewhere; the metadata was built for the one or the other.
    """
    if isinstance(metadata.batch, GatheredBatch):
        return attend_gathered(query, kv_cache, metadata.batch, scale, buffer, window)
    from kernels.gpu.attention import attend  # Triton is not there on every machine that has no GPU

    return attend(query, kv_cache, metadata.batch, scale, window)
