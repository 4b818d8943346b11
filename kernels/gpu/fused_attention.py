"""Decodes and prefill chunks of a step in one launch, so that an SM reads KV for the ones while it multiplies for the
others (POD-Attention, Kamath et al., ASPLOS 2025).

Which programs share an SM is not known when they are launched: the hardware hands them out, so that interleaving both
kinds by their number puts one kind on all even SMs. As in POD-Attention (section 4.1) a program learns on which SM it
runs, and chooses its kind then: each SM counts its programs and takes both kinds in the proportion in which the launch
has them. A kind that is used up is replaced by the other.

Registers and shared memory are those of the larger kind for every program, so chunks have smaller tiles here: an SM has
to hold at least two programs (``kernels.gpu.tiles.fused_tile_shapes``).
"""

import math

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import smid

from kernels.gpu.attend_tile import attend_tile, constants
from kernels.gpu.batch import PagedBatch
from kernels.gpu.reduce_splits import Target
from kernels.gpu.tiles import FusedShapes

KNOWS_SM = not triton.knobs.runtime.interpret


def attend_fused(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: PagedBatch,
    shapes: FusedShapes,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    num_splits: int | None,
) -> None:
    """``kernels.gpu.attention.attend`` of a batch that has decodes and chunks, into ``out``."""
    num_kv_heads, gpu = kv_cache.shape[2], batch.gpu
    group_size = query.shape[1] // num_kv_heads
    decodes, chunks = batch.decode_tiles(), batch.chunk_tiles(shapes.chunk.rows // group_size)
    decode_splits, chunk_splits = (
        num_splits or tiles.choose_num_splits(num_kv_heads, window, shape, gpu.num_sms)
        for tiles, shape in ((decodes, shapes.decode), (chunks, shapes.chunk))
    )
    to_decodes, to_chunks = Target.of(out, decodes, decode_splits), Target.of(out, chunks, chunk_splits)
    num_programs = num_kv_heads * (decodes.count * decode_splits + chunks.count * chunk_splits)
    fused_attention_kernel[(num_programs,)](
        query,
        kv_cache,
        to_decodes.rows,
        to_decodes.lse,
        to_chunks.rows,
        to_chunks.lse,
        batch.block_tables,
        batch.seq_lens,
        batch.query_start_loc,
        batch.fills_right,
        chunks.sequences,
        chunks.first_tokens,
        batch.new_counters(),
        num_kv_heads,
        gpu.num_sms,
        decodes.count,
        decode_splits,
        chunks.count,
        chunk_splits,
        to_chunks.first_row,
        scale * math.log2(math.e),
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        kv_cache.stride(1),
        kv_cache.stride(2),
        **constants(query, kv_cache, window),
        DECODE_ROWS=shapes.decode.rows,
        DECODE_KEYS=shapes.decode.keys,
        CHUNK_ROWS=shapes.chunk.rows,
        CHUNK_KEYS=shapes.chunk.keys,
        HAS_SM_ID=KNOWS_SM,
        num_warps=shapes.decode.num_warps,
        num_stages=shapes.decode.num_stages,
    )
    to_decodes.reduce()
    to_chunks.reduce()


VARIES = [
    *("num_kv_heads", "num_sms", "num_decodes", "decode_splits", "num_chunk_tiles", "chunk_splits"),
    *("chunk_first_row", "table_stride"),
]


@triton.jit(do_not_specialize=VARIES)
def fused_attention_kernel(
    query, kv_cache, decode_out, decode_lse, chunk_out, chunk_lse,
    block_tables, seq_lens, query_start_loc, fills_right, chunk_sequences, chunk_first_tokens,
    counters,  # [2 + num_sms], int32, zeros: of decode work, of chunk work, of each SM's programs
    num_kv_heads, num_sms, num_decodes, decode_splits, num_chunk_tiles, chunk_splits, chunk_first_row,
    scale_log2, table_stride, query_token_stride, query_head_stride, slot_stride, kv_head_stride,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    DECODE_ROWS: tl.constexpr, DECODE_KEYS: tl.constexpr, CHUNK_ROWS: tl.constexpr, CHUNK_KEYS: tl.constexpr,
    HAS_SM_ID: tl.constexpr,
):  # fmt: skip
    """A program is (KV head, tile, split) of the kind that it chooses; arguments as ``attend_tile`` has them."""
    sm = tl.program_id(0) % num_sms
    if HAS_SM_ID:
        sm = smid() % num_sms
    num_decode_work = num_decodes * decode_splits * num_kv_heads
    is_chunk, work = _take_work(counters, sm, num_sms, num_decode_work, tl.num_programs(0))
    kv_head, tile = work % num_kv_heads, work // num_kv_heads
    if is_chunk == 0:
        attend_tile(
            query, kv_cache, decode_out, decode_lse, block_tables, seq_lens, query_start_loc, fills_right, None, None,
            kv_head, tile % num_decodes, tile // num_decodes, num_kv_heads, decode_splits,
            scale_log2, 0, table_stride, query_token_stride, query_head_stride, slot_stride, kv_head_stride,
            GROUP, K_DIM, V_DIM, K_PAD, V_PAD, BLOCK_SIZE, WINDOW, DOT, DECODE_ROWS, DECODE_KEYS,
        )  # fmt: skip
    else:
        attend_tile(
            query, kv_cache, chunk_out, chunk_lse, block_tables, seq_lens, query_start_loc, fills_right,
            chunk_sequences, chunk_first_tokens,
            kv_head, tile % num_chunk_tiles, tile // num_chunk_tiles, num_kv_heads, chunk_splits,
            scale_log2, chunk_first_row, table_stride, query_token_stride, query_head_stride, slot_stride,
            kv_head_stride,
            GROUP, K_DIM, V_DIM, K_PAD, V_PAD, BLOCK_SIZE, WINDOW, DOT, CHUNK_ROWS, CHUNK_KEYS,
        )  # fmt: skip


@triton.jit
def _take_work(counters, sm, num_sms, num_decode_work, num_work):
    """The kind of work, 0 for a decode's and 1 for a chunk's, and its number among that kind: each is taken once, since
    there are as many programs as work."""
    turn = tl.atomic_add(counters + 2 + sm, 1, sem="relaxed")
    is_chunk = 1 - is_decode_turn(turn, sm, num_sms, num_decode_work, num_work).to(tl.int32)
    work = tl.atomic_add(counters + is_chunk, 1, sem="relaxed")
    if work >= tl.where(is_chunk == 1, num_work - num_decode_work, num_decode_work):
        is_chunk = 1 - is_chunk
        work = tl.atomic_add(counters + is_chunk, 1, sem="relaxed")
    return is_chunk, work


@triton.jit
def is_decode_turn(turn, sm, num_sms, num_decode_work, num_work):
    """Whether an SM's program number ``turn`` takes a decode: any n in a row take n * num_decode_work / num_work of
    them, to less than one. SMs begin at different places of that sequence, so that few programs of a kind are not all
    at an SM's end."""
    place = turn.to(tl.int64) * num_decode_work + sm.to(tl.int64) * num_work // num_sms
    return place % num_work >= num_work - num_decode_work
