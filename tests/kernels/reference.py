"""Paged attention as its definition says it, in float64, one token at a time.."""

import torch


def reference_paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    num_computed: list[int],
    num_new: list[int],
    block_tables: list[list[int]],
    scale: float,
    window: int | None = None,
    fills_right: list[bool] | None = None,
) -> torch.Tensor:
    """The same as ``paged_attention``: [num_tokens, num_heads, v_dim], float64 on CPU."""
    _, num_heads, k_dim = query.shape
    _, block_size, num_kv_heads, _ = kv_cache.shape
    grouped = query.double().cpu().view(-1, num_kv_heads, num_heads // num_kv_heads, k_dim)
    cache = kv_cache.double().cpu()
    outputs: list[torch.Tensor] = []
    directions = fills_right or [False] * len(num_new)
    for computed, new, block_table, right in zip(num_computed, num_new, block_tables, directions, strict=True):
        slots = [
            (block_table[p // block_size], block_size - 1 - p % block_size if right else p % block_size)
            for p in range(computed + new)
        ]
        blocks, offsets = torch.tensor(slots).T
        kv = cache[blocks, offsets]  # [seq_len, num_kv_heads, k_dim + v_dim]
        for position in range(computed, computed + new):
            first = 0 if window is None else max(0, position - window + 1)
            keys, values = kv[first : position + 1, :, :k_dim], kv[first : position + 1, :, k_dim:]
            scores = torch.einsum("hgd,thd->hgt", grouped[len(outputs)], keys) * scale
            outputs.append(torch.einsum("hgt,thv->hgv", scores.softmax(dim=-1), values).flatten(0, 1))
    return torch.stack(outputs)
