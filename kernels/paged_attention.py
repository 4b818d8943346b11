"""Causal attention of a flattened batch over paged KV blocks, for any mix of prefill chunks and decodes.

In plain torch, for CPU and CUDA. Decodes of similar length share one call: their blocks are gathered into a buffer
that stays in the processor's cache, and the query heads of one KV head become query rows, so K and V are read once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.metadata import AttentionMetadata, Chunk, DecodeGroup


class GatherBuffer:
    """Memory for gathered blocks, kept between calls and grown when needed."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def gather(self, kv_cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """The rows ``blocks`` of ``kv_cache``, valid until the next call."""
        shape = (blocks.shape[0], *kv_cache.shape[1:])
        size = blocks.shape[0] * kv_cache.stride(0)
        buffer = self._buffer
        if buffer is None or buffer.numel() < size or buffer.dtype != kv_cache.dtype:
            buffer = self._buffer = torch.empty(size, dtype=kv_cache.dtype, device=kv_cache.device)
        return torch.index_select(kv_cache, 0, blocks, out=buffer[:size].view(shape))


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

    Query head h reads KV head ``h // (num_heads // num_kv_heads)``. A query at position p reads (p - window, p].
    """
    num_tokens, num_heads, k_dim = query.shape
    out = query.new_empty(num_tokens, num_heads, kv_cache.shape[3] - k_dim)
    for group in metadata.decode_groups:
        _attend_decodes(query, kv_cache, group, scale, buffer, window, out)
    for chunk in metadata.chunks:
        _attend_chunk(query, kv_cache, chunk, scale, buffer, window, out)
    return out


def _attend_decodes(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    group: DecodeGroup,
    scale: float,
    buffer: GatherBuffer,
    window: int | None,
    out: torch.Tensor,
) -> None:
    num_rows = group.end - group.start
    num_kv_heads, k_dim = kv_cache.shape[2], query.shape[2]
    gathered = buffer.gather(kv_cache, group.blocks).view(num_rows, -1, num_kv_heads, kv_cache.shape[3])
    kv = gathered[:, : group.max_seq_len].transpose(1, 2)  # [num_rows, num_kv_heads, max_seq_len, k_dim + v_dim]
    rows = query[group.start : group.end].view(num_rows, num_kv_heads, -1, k_dim)
    attended = F.scaled_dot_product_attention(
        rows, kv[..., :k_dim], kv[..., k_dim:], attn_mask=group.mask(window, query), scale=scale
    )
    out[group.start : group.end].view(attended.shape).copy_(attended)


def _attend_chunk(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    chunk: Chunk,
    scale: float,
    buffer: GatherBuffer,
    window: int | None,
    out: torch.Tensor,
) -> None:
    num_kv_heads, k_dim = kv_cache.shape[2], query.shape[2]
    gathered = buffer.gather(kv_cache, chunk.blocks).view(-1, num_kv_heads, kv_cache.shape[3])[: chunk.seq_len]
    num_rows = chunk.end - chunk.start
    rows = query[chunk.start : chunk.end].view(num_rows, num_kv_heads, -1, k_dim).permute(1, 2, 0, 3)
    kv = gathered.transpose(0, 1).unsqueeze(1)  # [num_kv_heads, 1, seq_len, k_dim + v_dim]
    kv = kv.expand(-1, rows.shape[1], -1, -1)  # one KV head for its query heads: a view, not a copy
    causal = chunk.is_plain_causal(window)
    attended = F.scaled_dot_product_attention(
        rows,
        kv[..., :k_dim],
        kv[..., k_dim:],
        attn_mask=None if causal else chunk.mask(window, query),
        is_causal=causal,
        scale=scale,
    )
    out[chunk.start : chunk.end].view(num_rows, *attended.shape[:2], -1).copy_(attended.permute(2, 0, 1, 3))
