"""What a program of paged attention does: the query rows of one KV head in one tile of a sequence's new tokens.

The query heads of a KV head are packed into the rows of a tile, so every key and value is loaded once for all of them.
Softmax runs online (Milakov and Gimelshein 2018; tiled as in FlashAttention, Dao et al. 2022), in base 2 with the
scale folded in, accumulated in float32. Where a program reads only a part of a sequence's KV (``num_splits`` above 1)
it leaves a partial result for ``kernels.gpu.reduce_splits``.

Direction (BROS section 5.1) is one exclusive-or: position p lies in its block at ``p % block_size`` where a request
fills from the left, and at ``block_size - 1 - p % block_size``, which flips those bits, where it fills from the right.
"""

from typing import Any

import torch
import triton
import triton.language as tl

# The interpreter keeps bfloat16 as raw bits and cannot multiply them.
_BFLOAT16_DOT = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16
DOT_DTYPE = {torch.float16: tl.float16, torch.bfloat16: _BFLOAT16_DOT, torch.float32: tl.float32}


def constants(query: torch.Tensor, kv_cache: torch.Tensor, window: int | None) -> dict[str, Any]:
    """What the kernels are compiled for, beside their tiles; shapes as ``kernels.paged_attention`` has them."""
    k_dim, (block_size, num_kv_heads, width) = query.shape[2], kv_cache.shape[1:]
    return {
        "GROUP": query.shape[1] // num_kv_heads,
        "K_DIM": k_dim,
        "V_DIM": width - k_dim,
        "K_PAD": max(16, triton.next_power_of_2(k_dim)),
        "V_PAD": max(16, triton.next_power_of_2(width - k_dim)),
        "BLOCK_SIZE": block_size,
        "WINDOW": window or 0,
        "DOT": DOT_DTYPE[query.dtype],
    }


@triton.jit
def attend_tile(
    query,  # [num_tokens, num_heads, K_DIM]
    kv_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, K_DIM + V_DIM]
    out,  # [num_tokens, num_heads, V_DIM], or partial results [num_rows, num_heads, num_splits, V_DIM], float32
    lse,  # [num_rows, num_heads, num_splits], log2 of each partial result's sum of weights; None without splits
    block_tables,  # [num_sequences, table_stride], int32
    seq_lens,  # [num_sequences], int32
    query_start_loc,  # [num_sequences + 1], int32
    fills_right,  # [num_sequences], int32, 0 or 1; None where no sequence fills from the right
    tile_sequences,  # [num_tiles], int32; None: tile i is sequence i
    tile_first_tokens,  # [num_tiles], int32, counted from the sequence's first new token
    kv_head, tile, split, num_kv_heads, num_splits,
    scale_log2, first_row, table_stride, query_token_stride, query_head_stride, slot_stride, kv_head_stride,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    ONE_TOKEN: tl.constexpr = tile_sequences is None
    sequence = tile
    first_token = 0
    if tile_sequences is not None:
        first_token = tl.load(tile_first_tokens + tile)
        sequence = tl.load(tile_sequences + tile)
    query_start = tl.load(query_start_loc + sequence)
    num_new = tl.load(query_start_loc + sequence + 1) - query_start
    num_computed = tl.load(seq_lens + sequence) - num_new
    flip = 0
    if fills_right is not None:
        flip = tl.load(fills_right + sequence) * (BLOCK_SIZE - 1)

    # Row r of the tile is query head r % GROUP of token r // GROUP; rows over whole tokens stay empty.
    TOKENS: tl.constexpr = TILE_ROWS // GROUP
    row = tl.arange(0, TILE_ROWS)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < TOKENS * GROUP) & (token < num_new)
    position = num_computed + token
    k_lane = tl.arange(0, K_PAD)
    query_rows = query + (query_start + token).to(tl.int64) * query_token_stride + head * query_head_stride
    q = tl.load(query_rows[:, None] + k_lane[None, :], mask=is_row[:, None] & (k_lane < K_DIM)[None, :], other=0.0)

    first_position = num_computed + first_token
    last_position = num_computed + tl.minimum(first_token + TOKENS, num_new) - 1
    low, plain_end, high = _key_range(
        first_position, last_position, split, num_splits, lse is not None, TILE_KEYS, WINDOW, ONE_TOKEN
    )
    table = block_tables + sequence.to(tl.int64) * table_stride
    keys = kv_cache + kv_head * kv_head_stride
    acc = tl.zeros([TILE_ROWS, V_PAD], dtype=tl.float32)
    row_max = tl.full([TILE_ROWS], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_ROWS], dtype=tl.float32)
    if WINDOW == 0 and not ONE_TOKEN:
        for start in range(low, plain_end, TILE_KEYS):
            acc, row_max, row_sum = _attend_keys(
                q, acc, row_max, row_sum, start, high, position, flip, table, keys, slot_stride, scale_log2,
                K_DIM, V_DIM, K_PAD, V_PAD, BLOCK_SIZE, WINDOW, TILE_KEYS, False, DOT,
            )  # fmt: skip
    for start in range(plain_end, high, TILE_KEYS):
        acc, row_max, row_sum = _attend_keys(
            q, acc, row_max, row_sum, start, high, position, flip, table, keys, slot_stride, scale_log2,
            K_DIM, V_DIM, K_PAD, V_PAD, BLOCK_SIZE, WINDOW, TILE_KEYS, True, DOT,
        )  # fmt: skip
    out_row = (query_start + token - first_row).to(tl.int64) * (GROUP * num_kv_heads) + head
    _store_rows(out, lse, out_row, split, num_splits, is_row, acc, row_max, row_sum, V_DIM, V_PAD)


@triton.jit
def _key_range(
    first_position, last_position, split, num_splits, SPLIT: tl.constexpr,
    TILE_KEYS: tl.constexpr, WINDOW: tl.constexpr, ONE_TOKEN: tl.constexpr,
):  # fmt: skip
    """KV positions [low, high) concern this program: those that some row of the tile reads, or this split's share.
    Tiles below ``plain_end`` are read in full by every row and need no mask."""
    low = 0
    if WINDOW > 0:
        low = tl.maximum(first_position - WINDOW + 1, 0)
    high = last_position + 1
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - low, TILE_KEYS), num_splits) * TILE_KEYS
        low = low + split * share
        high = tl.minimum(high, low + share)
    plain_end = low
    if WINDOW == 0 and not ONE_TOKEN:
        plain_end = low + tl.maximum(tl.minimum(high, first_position + 1) - low, 0) // TILE_KEYS * TILE_KEYS
    return low, plain_end, high


@triton.jit
def _attend_keys(
    q, acc, row_max, row_sum, start, high, position, flip, table, keys, slot_stride, scale_log2,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, TILE_KEYS: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Take KV positions [start, start + TILE_KEYS) into the running softmax; MASKED where some row reads not all."""
    key = start + tl.arange(0, TILE_KEYS)
    is_key = key < high
    block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0)
    slot = block.to(tl.int64) * BLOCK_SIZE + ((key % BLOCK_SIZE) ^ flip)
    rows = keys + slot * slot_stride
    k_lane = tl.arange(0, K_PAD)
    v_lane = tl.arange(0, V_PAD)
    k_mask = (k_lane < K_DIM)[None, :]
    v_mask = (v_lane < V_DIM)[None, :]
    if MASKED:
        # Slots from ``high`` on may be another request's: they are not loaded, since 0 times NaN is NaN.
        k_mask = is_key[:, None] & k_mask
        v_mask = is_key[:, None] & v_mask
    k = tl.load(rows[:, None] + k_lane[None, :], mask=k_mask, other=0.0)
    v = tl.load(rows[:, None] + (K_DIM + v_lane)[None, :], mask=v_mask, other=0.0)

    scores = tl.dot(q.to(DOT), tl.trans(k.to(DOT)), input_precision="tf32x3") * scale_log2
    if MASKED:
        visible = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shift = new_max
    if MASKED:
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf minus -inf is NaN
    weights = tl.math.exp2(scores - shift[:, None])
    decay = tl.math.exp2(row_max - shift)
    row_sum = row_sum * decay + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype).to(DOT), v.to(DOT), acc * decay[:, None], input_precision="tf32x3")
    return acc, new_max, row_sum


@triton.jit
def _store_rows(
    out, lse, out_row, split, num_splits, is_row, acc, row_max, row_sum, V_DIM: tl.constexpr, V_PAD: tl.constexpr
):
    # A row that read nothing here (a split beyond its KV) has a sum of 0 and yields a weight of 0, not NaN.
    total = tl.where(row_sum == 0.0, 1.0, row_sum)
    if lse is not None:
        out_row = out_row * num_splits + split
        tl.store(lse + out_row, tl.where(row_sum == 0.0, float("-inf"), row_max + tl.math.log2(total)), mask=is_row)
    lane = tl.arange(0, V_PAD)
    mask = is_row[:, None] & (lane < V_DIM)[None, :]
    tl.store(out + out_row[:, None] * V_DIM + lane[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)
