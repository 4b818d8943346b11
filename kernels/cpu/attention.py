"""Paged attention on the CPU. Decodes are read where they lie, by a kernel of our own. What it does not suit, and
chunks, are computed by torch: KV is gathered into a buffer that stays in the processor's cache, and the query heads of
one KV head become query rows, so K and V are read once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cpu import row_attention
from kernels.cpu.batch import Chunk, DecodeGroup, GatheredBatch
from kernels.cpu.chunk_products import attend_causally, suits


class GatherBuffer:
    """Memory for gathered KV, kept between calls and grown when needed."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def gather(self, kv_cache: Tensor, slots: Tensor) -> Tensor:
        """[num_slots, num_kv_heads, k_dim + v_dim], valid until the next call."""
        source = kv_cache.view(-1, *kv_cache.shape[2:])
        size = len(slots) * source.stride(0)
        buffer = self._buffer
        if buffer is None or buffer.numel() < size or buffer.dtype != kv_cache.dtype:
            buffer = self._buffer = torch.empty(size, dtype=kv_cache.dtype, device=kv_cache.device)
        return torch.index_select(source, 0, slots, out=buffer[:size].view(-1, *source.shape[1:]))


def attend(
    query: Tensor, kv_cache: Tensor, batch: GatheredBatch, scale: float, buffer: GatherBuffer, window: int | None = None
) -> Tensor:
    """``kernels.paged_attention.paged_attention`` on the CPU."""
    num_tokens, num_heads, k_dim = query.shape
    out = query.new_empty(num_tokens, num_heads, kv_cache.shape[3] - k_dim)
    in_rows = row_attention.suits(kv_cache.dtype, k_dim, out.shape[2])
    if in_rows:
        row_attention.attend(query, kv_cache, batch.rows, scale, window, out)
    else:
        for group in batch.decodes.groups(window, query):
            _attend_decodes(query, kv_cache, group, scale, buffer, out)
    for chunk in batch.other_chunks if in_rows else batch.chunks:
        _attend_chunk(query, kv_cache, chunk, scale, buffer, window, out)
    return out


def _attend_decodes(
    query: Tensor, kv_cache: Tensor, group: DecodeGroup, scale: float, buffer: GatherBuffer, out: Tensor
) -> None:
    num_rows = group.end - group.start
    num_kv_heads, k_dim = kv_cache.shape[2], query.shape[2]
    gathered = buffer.gather(kv_cache, group.slots).view(num_rows, -1, num_kv_heads, kv_cache.shape[3])
    kv = gathered.transpose(1, 2)  # [num_rows, num_kv_heads, num_keys, k_dim + v_dim]
    queries = query[group.start : group.end].view(num_rows, num_kv_heads, -1, k_dim)
    keys, values = kv[..., :k_dim], kv[..., k_dim:]
    mask = None if group.mask is None else group.mask[:, None, None, :]
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    out[group.start : group.end].view(attended.shape).copy_(attended)


def _attend_chunk(
    query: Tensor, kv_cache: Tensor, chunk: Chunk, scale: float, buffer: GatherBuffer, window: int | None, out: Tensor
) -> None:
    num_kv_heads, k_dim = kv_cache.shape[2], query.shape[2]
    gathered = buffer.gather(kv_cache, chunk.slots(window))
    num_rows = chunk.end - chunk.start
    grouped = query[chunk.start : chunk.end].view(num_rows, num_kv_heads, -1, k_dim)
    if chunk.reads_all(window) and suits(query, num_rows):
        attend_causally(grouped, gathered, scale, out[chunk.start : chunk.end].view(*grouped.shape[:3], -1))
        return
    queries = grouped.permute(1, 2, 0, 3)
    kv = gathered.transpose(0, 1).unsqueeze(1)  # [num_kv_heads, 1, num_keys, k_dim + v_dim]
    kv = kv.expand(-1, queries.shape[1], -1, -1)  # one KV head for its query heads: a view, not a copy
    keys, values = kv[..., :k_dim], kv[..., k_dim:]
    mask, is_causal = chunk.mask(window, query), chunk.is_plain_causal(window)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale)
    out[chunk.start : chunk.end].view(num_rows, *attended.shape[:2], -1).copy_(attended.permute(2, 0, 1, 3))
