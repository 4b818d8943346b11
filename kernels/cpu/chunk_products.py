"""Attention of a prefill chunk as plain matrix products, by oneDNN.

torch's fused attention multiplies float32 with MKL, which on AMD processors has less than half of oneDNN's speed; here
that outweighs that scores pass through memory. Query tokens go in blocks: scores stay in the processor's cache, keys
behind a block are not multiplied. Shapes are padded to a few, since each takes oneDNN a millisecond of code generation.
"""

import functools

import torch
import torch.nn.functional as F

BLOCK_TOKENS = 128  # query tokens of one product
TOKEN_STEP = 32  # that the last block is padded to
KEY_STEP = 128
MIN_TOKENS = 96  # of a chunk: shorter ones gain nothing


def suits(query: torch.Tensor, num_tokens: int) -> bool:
    """Whether a chunk of ``num_tokens`` is best computed here."""
    return query.dtype is torch.float32 and num_tokens >= MIN_TOKENS and _has_onednn()


def attend_causally(query: torch.Tensor, kv: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """Attend ``query`` [num_tokens, num_kv_heads, group_size, k_dim], the last of the sequence's tokens, to ``kv``
    [num_keys, num_kv_heads, k_dim + v_dim], all of them; each reads up to its own. Writes ``out`` [num_tokens,
    num_kv_heads, group_size, v_dim]."""
    num_tokens, k_dim = query.shape[0], query.shape[3]
    keys, values = _padded_heads(kv[..., :k_dim], KEY_STEP), _padded_heads(kv[..., k_dim:], KEY_STEP)
    first = kv.shape[0] - num_tokens  # keys before the chunk
    for start in range(0, num_tokens, BLOCK_TOKENS):
        end = min(start + BLOCK_TOKENS, num_tokens)
        rows = _padded_heads((query[start:end] * scale).flatten(2), TOKEN_STEP)
        rows = rows.view(*rows.shape[:2], -1, k_dim)  # [num_kv_heads, padded tokens, group_size, k_dim]
        num_keys = _rounded(first + end, KEY_STEP)
        # [padded tokens, 1, keys from the block's first on], -inf where token i would read a key behind i, 0 elsewhere
        hidden = torch.full((rows.shape[1], num_keys - first - start), float("-inf")).triu_(1)[:, None]
        for head in range(kv.shape[1]):
            scores = _product(rows[head].flatten(0, 1), keys[head, :num_keys])
            scores.view(*hidden.shape[:1], -1, num_keys)[:, :, first + start :].add_(hidden)
            weights = torch.softmax(scores, dim=-1, out=scores)
            attended = _product(weights, values[head, :num_keys].T).view(*rows.shape[1:3], -1)
            out[start:end, head] = attended[: end - start]


def _padded_heads(x: torch.Tensor, step: int) -> torch.Tensor:
    """``x`` [count, num_heads, dim] as [num_heads, count rounded up to ``step``, dim], zeros behind."""
    padded = x.new_empty(x.shape[1], _rounded(len(x), step), x.shape[2])
    padded[:, : len(x)] = x.transpose(0, 1)
    padded[:, len(x) :] = 0.0
    return padded


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T``"""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return product


@functools.cache
def _has_onednn() -> bool:
    """Whether this build of torch has the operation, and it does what we think."""
    x, weight = torch.linspace(-1, 1, 3 * 16).view(3, 16), torch.linspace(-2, 1, 16 * 5).view(16, 5).T
    try:
        return bool(torch.allclose(_product(x, weight), F.linear(x, weight), atol=1e-5))
    except (AttributeError, RuntimeError):
        return False
