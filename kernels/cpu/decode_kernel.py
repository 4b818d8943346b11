"""Attention of decodes that reads the KV blocks where they lie, compiled by Numba for the processor at hand.

Softmax runs online over tiles of keys (Milakov and Gimelshein 2018), in base 2 with the scale folded into the query.
The slots of a tile are read in the order of positions, all heads of a slot together, so memory is read once and in runs
of a block; while a tile is computed, the next one is on its way from memory, which doubles the speed of long contexts.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import njit, prange

from kernels.cpu.compiled import LOG2_E, compiled, exp2, prefetch

TILE_KEYS = 64
LINE = 16  # numbers that the processor fetches at a time


@functools.cache
def decode_kernel(k_dim: int, v_dim: int) -> Callable[..., None]:
    """Compiled for heads of this size, from a cache on disk if it has been before; else it takes seconds."""

    @compiled(
        "void(float32[:, :, :], float32[:, :, ::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64, int64,"
        " float64, int64, float32[:, :, ::1])"
    )
    def attend_decodes(query, kv, tables, starts, seq_lens, fills_right, block_size, window, scale, splits, out):
        """Write ``out`` [num_rows, num_heads, v_dim] of ``query`` [num_rows, num_heads, k_dim] over ``kv`` [num_slots,
        num_kv_heads, k_dim + v_dim]. Row i reads the last ``window`` (0: all) of its ``seq_lens[i]`` tokens, in the
        blocks from ``tables[starts[i]]`` on. ``splits`` threads share its KV heads."""
        num_heads = kv.shape[1] // splits
        group = query.shape[1] // kv.shape[1]
        num_rows = num_heads * group
        for task in prange(query.shape[0] * splits):
            row, first_head = task // splits, task % splits * num_heads
            scaled = np.empty((num_rows, k_dim), np.float32)
            for head in range(num_rows):
                for d in range(k_dim):
                    scaled[head, d] = query[row, first_head * group + head, d] * scale * LOG2_E
            scores = np.empty((num_rows, TILE_KEYS), np.float32)
            slots = np.empty(TILE_KEYS, np.int64)
            next_slots = np.empty(TILE_KEYS, np.int64)
            tops, sums = np.zeros(num_rows, np.float32), np.zeros(num_rows, np.float32)
            mean = np.zeros((num_rows, v_dim), np.float32)
            first = max(0, seq_lens[row] - window) if window > 0 else 0
            for position in range(first, seq_lens[row], TILE_KEYS):
                count = min(TILE_KEYS, seq_lens[row] - position)
                _find_slots(slots, tables, starts[row], position, count, block_size, fills_right[row])
                ahead = min(TILE_KEYS, seq_lens[row] - position - TILE_KEYS)
                _find_slots(next_slots, tables, starts[row], position + TILE_KEYS, ahead, block_size, fills_right[row])
                _score(scores, scaled, slots, count, kv, first_head, num_heads, group, k_dim, next_slots, ahead, v_dim)
                _weigh(scores, count, tops, sums, mean, position == first, v_dim)
                _add_values(mean, scores, slots, count, kv, first_head, num_heads, group, k_dim, v_dim)
            for head in range(num_rows):
                for d in range(v_dim):
                    out[row, first_head * group + head, d] = mean[head, d] / sums[head]

    return attend_decodes


@njit(inline="always")
def _find_slots(slots, tables, start, position, count, block_size, fills_right):
    for i in range(count):
        offset = (position + i) % block_size
        if fills_right:
            offset = block_size - 1 - offset
        slots[i] = tables[start + (position + i) // block_size] * block_size + offset


@njit(inline="always")
def _score(scores, query, slots, count, kv, first_head, num_heads, group, k_dim, next_slots, ahead, v_dim):
    """Of a tile, while the next one is fetched."""
    for i in range(count):
        slot = slots[i]
        if i < ahead:
            for head in range(num_heads):
                for d in range(0, k_dim + v_dim, LINE):
                    prefetch(kv, next_slots[i], first_head + head, d)
        for head in range(num_heads):
            for row in range(head * group, head * group + group):
                score = np.float32(0.0)
                for d in range(k_dim):
                    score += query[row, d] * kv[slot, first_head + head, d]
                scores[row, i] = score


@njit(inline="always")
def _weigh(scores, count, tops, sums, mean, is_first, v_dim):
    """Scores become weights; what was taken before is scaled to the new maximum."""
    for row in range(scores.shape[0]):
        top = scores[row, 0]
        for i in range(1, count):
            top = max(top, scores[row, i])
        if not is_first:
            top = max(top, tops[row])
            decay = exp2(tops[row] - top)
            sums[row] *= decay
            for d in range(v_dim):
                mean[row, d] *= decay
        tops[row] = top
        total = np.float32(0.0)
        for i in range(count):
            weight = exp2(scores[row, i] - top)
            scores[row, i] = weight
            total += weight
        sums[row] += total


@njit(inline="always")
def _add_values(mean, weights, slots, count, kv, first_head, num_heads, group, k_dim, v_dim):
    """Four slots at a time: the mean is loaded and stored once for them."""
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        s0, s1, s2, s3 = slots[i], slots[i + 1], slots[i + 2], slots[i + 3]
        for h in range(num_heads):
            head = first_head + h
            for row in range(h * group, h * group + group):
                w0, w1, w2, w3 = weights[row, i], weights[row, i + 1], weights[row, i + 2], weights[row, i + 3]
                for d in range(v_dim):
                    mean[row, d] += (
                        w0 * kv[s0, head, k_dim + d]
                        + w1 * kv[s1, head, k_dim + d]
                        + w2 * kv[s2, head, k_dim + d]
                        + w3 * kv[s3, head, k_dim + d]
                    )
    for i in range(whole, count):
        for h in range(num_heads):
            for row in range(h * group, h * group + group):
                for d in range(v_dim):
                    mean[row, d] += weights[row, i] * kv[slots[i], first_head + h, k_dim + d]
