"""Decodes by the compiled kernel, where it suits them."""

import functools

import torch

from kernels.cpu.batch import Decodes
from kernels.cpu.threads import has_numba, use_threads

HEAD_SIZES = (64, 128)  # that the kernel is compiled for: each takes seconds, once on a machine


def suits(dtype: torch.dtype, k_dim: int, v_dim: int) -> bool:
    """Whether decodes of such a KV cache are best computed here. Numba is not there everywhere."""
    return dtype is torch.float32 and k_dim == v_dim and k_dim in HEAD_SIZES and has_numba()


def prepare(dtype: torch.dtype, k_dim: int, v_dim: int) -> None:
    """Compile now what ``attend`` would compile when it is first called."""
    if suits(dtype, k_dim, v_dim):
        from kernels.cpu.decode_kernel import decode_kernel

        decode_kernel(k_dim, v_dim)


def attend(
    query: torch.Tensor, kv_cache: torch.Tensor, decodes: Decodes, scale: float, window: int | None, out: torch.Tensor
) -> None:
    """The leading rows of ``paged_attention``, to ``out`` [num_tokens, num_heads, v_dim], on torch's threads."""
    num_rows, num_kv_heads = len(decodes.starts), kv_cache.shape[2]
    if not num_rows:
        return
    from kernels.cpu.decode_kernel import decode_kernel

    num_threads = use_threads(len(decodes.tables) * kv_cache[0].numel())
    decode_kernel(query.shape[2], out.shape[2])(
        query[:num_rows].numpy(),
        kv_cache.view(-1, num_kv_heads, kv_cache.shape[3]).numpy(),
        decodes.tables,
        decodes.starts,
        decodes.seq_lens,
        decodes.fills_right,
        decodes.block_size,
        window or 0,
        scale,
        _num_splits(num_rows, num_kv_heads, num_threads),
        out[:num_rows].numpy(),
    )


@functools.cache
def _num_splits(num_rows: int, num_kv_heads: int, num_threads: int) -> int:
    """How many threads share the KV heads of a row: just so many that each thread has something to do."""
    enough = (splits for splits in range(1, num_kv_heads) if num_kv_heads % splits == 0)
    return next((splits for splits in enough if num_rows * splits >= num_threads), num_kv_heads)
