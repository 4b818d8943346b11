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
        kv = cache[blocks, offsets].transpose(0, 1)
        keys, values = kv[..., :k_dim].contiguous(), kv[..., k_dim:].contiguous()  # [num_kv_heads, seq_len, dim]
        for position in range(computed, computed + new):
            first = 0 if window is None else max(0, position - window + 1)
            scores = grouped[len(outputs)] @ keys[:, first : position + 1].transpose(1, 2) * scale
            outputs.append((scores.softmax(dim=-1) @ values[:, first : position + 1]).flatten(0, 1))
    return torch.stack(outputs)
