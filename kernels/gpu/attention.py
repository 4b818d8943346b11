"""Paged attention in Triton: a launch for decodes and one for chunks, or, by ``kernels.gpu.fused_attention``, one for
both. What a program does is ``kernels.gpu.attend_tile``."""

import math

import torch
import triton
import triton.language as tl

from kernels.gpu.attend_tile import attend_tile, constants
from kernels.gpu.batch import PagedBatch
from kernels.gpu.fused_attention import attend_fused
from kernels.gpu.reduce_splits import Target
from kernels.gpu.tiles import Tiles, TileShape, chunk_tile_shape, decode_tile_shape, fused_tile_shapes


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``kernels.paged_attention.paged_attention`` on tensors that Triton can reach. Waits for nothing. ``num_splits``:
    into how many parts each tile's KV is cut; None chooses by how many programs fill the GPU."""
    num_tokens, num_heads, k_dim = query.shape
    num_kv_heads, width = kv_cache.shape[2:]
    query = query if query.stride(2) == 1 else query.contiguous()
    if out is None:
        out = query.new_empty(num_tokens, num_heads, width - k_dim)
    group_size = num_heads // num_kv_heads
    head_dim = max(k_dim, width - k_dim)
    has_chunks = batch.num_decodes < len(batch.num_new)
    if batch.is_fused and batch.num_decodes and has_chunks:
        shapes = fused_tile_shapes(group_size, head_dim, query.dtype, batch.gpu.shared_bytes)
        if shapes is not None:
            attend_fused(query, kv_cache, batch, shapes, scale, window, out, num_splits)
            return out
    if batch.num_decodes:
        shape = decode_tile_shape(group_size, head_dim, query.dtype, batch.gpu.shared_bytes)
        tiles = batch.decode_tiles()
        _launch(query, kv_cache, batch, tiles, shape, scale, window, out, num_splits)
    if has_chunks:
        shape = chunk_tile_shape(group_size, head_dim, query.dtype, batch.gpu.shared_bytes)
        tiles = batch.chunk_tiles(shape.rows // group_size)
        _launch(query, kv_cache, batch, tiles, shape, scale, window, out, num_splits)
    return out


def _launch(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: PagedBatch,
    tiles: Tiles,
    shape: TileShape,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    num_splits: int | None,
) -> None:
    """Attend the query rows of ``tiles``, writing rows [first_row, first_row + num_rows) of ``out``."""
    num_kv_heads = kv_cache.shape[2]
    splits = num_splits or tiles.choose_num_splits(num_kv_heads, window, shape, batch.gpu.num_sms)
    target = Target.of(out, tiles, splits)
    attention_kernel[(num_kv_heads, tiles.count, splits)](
        query,
        kv_cache,
        target.rows,
        target.lse,
        batch.block_tables,
        batch.seq_lens,
        batch.query_start_loc,
        batch.fills_right,
        tiles.sequences,
        tiles.first_tokens,
        scale * math.log2(math.e),
        target.first_row,
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        kv_cache.stride(1),
        kv_cache.stride(2),
        **constants(query, kv_cache, window),
        TILE_ROWS=shape.rows,
        TILE_KEYS=shape.keys,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    target.reduce()


@triton.jit(do_not_specialize=["first_row", "table_stride"])
def attention_kernel(
    query, kv_cache, out, lse, block_tables, seq_lens, query_start_loc, fills_right, tile_sequences, tile_first_tokens,
    scale_log2, first_row, table_stride, query_token_stride, query_head_stride, slot_stride, kv_head_stride,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """A program is (KV head, tile, split); arguments as ``attend_tile`` has them."""
    attend_tile(
        query, kv_cache, out, lse, block_tables, seq_lens, query_start_loc, fills_right,
        tile_sequences, tile_first_tokens,
        tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0), tl.num_programs(2),
        scale_log2, first_row, table_stride, query_token_stride, query_head_stride, slot_stride, kv_head_stride,
        GROUP, K_DIM, V_DIM, K_PAD, V_PAD, BLOCK_SIZE, WINDOW, DOT, TILE_ROWS, TILE_KEYS,
    )  # fmt: skip
