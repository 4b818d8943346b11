"""Query rows by the compiled kernel, where it suits them."""

import functools

import torch

from kernels.cpu.batch import Rows
from kernels.cpu.threads import has_numba, use_threads

HEAD_SIZES = (64, 128)  # that the kernel is compiled for: each takes seconds, once on a machine


def suits(dtype: torch.dtype, k_dim: int, v_dim: int) -> bool:
    """Whether rows of such a KV cache are best computed here. Numba is not there everywhere."""
    return dtype is torch.float32 and k_dim == v_dim and k_dim in HEAD_SIZES and has_numba()


def prepare(dtype: torch.dtype, k_dim: int, v_dim: int) -> None:
    """Compile now what ``attend`` would compile when it is first called."""
    if suits(dtype, k_dim, v_dim):
        from kernels.cpu.row_kernel import row_kernel

        row_kernel(k_dim, v_dim)


def attend(
    query: torch.Tensor, kv_cache: torch.Tensor, rows: Rows, scale: float, window: int | None, out: torch.Tensor
) -> None:
    """Those rows of ``paged_attention``, to ``out`` [num_tokens, num_heads, v_dim], on torch's threads."""
    if not len(rows.numbers):
        return
    from kernels.cpu.row_kernel import row_kernel

    num_kv_heads = kv_cache.shape[2]
    num_threads = use_threads(rows.num_keys * num_kv_heads * kv_cache.shape[3])
    row_kernel(query.shape[2], out.shape[2])(
        query.numpy(),
        kv_cache.view(-1, num_kv_heads, kv_cache.shape[3]).numpy(),
        rows.tables,
        rows.numbers,
        rows.starts,
        rows.seq_lens,
        rows.fills_right,
        rows.block_size,
        window or 0,
        scale,
        _num_splits(len(rows.numbers), num_kv_heads, num_threads),
        num_threads,
        out.numpy(),
    )


@functools.cache
def _num_splits(num_rows: int, num_kv_heads: int, num_threads: int) -> int:
    """How many threads share the KV heads of a row: just so many that each thread has something to do."""
    enough = (splits for splits in range(1, num_kv_heads) if num_kv_heads % splits == 0)
    return next((splits for splits in enough if num_rows * splits >= num_threads), num_kv_heads)
