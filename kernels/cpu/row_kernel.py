"""Attention of single query rows that reads the KV blocks where they lie, compiled by Numba for the processor at hand.

Softmax runs online over tiles of keys (Milakov and Gimelshein 2018), in base 2 with the scale folded into the query.
The slots of a tile are read in the order of positions, all heads of a slot together, so memory is read once and in runs
of a block; while a tile is computed, the next one is on its way from memory.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import njit, prange

from kernels.cpu.compiled import LOG2_E, compiled, exp2
from kernels.cpu.vectors import AT_A_TIME, LANES, add_values, prefetch, score_slots

TILE_KEYS = 16  # two tiles of three heads of 64 are what the first cache holds
LEAST = np.float32(-1e30)  # less than any score


@functools.cache
def row_kernel(k_dim: int, v_dim: int) -> Callable[..., None]:
    """Compiled for heads of these sizes, multiples of 16, from a cache on disk if it has been before; else it takes
    seconds."""

    @compiled(
        "void(float32[:, :, :], float32[:, :, ::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1],"
        " int64, int64, float64, int64, int64, float32[:, :, ::1])"
    )
    def attend_rows(
        query, kv, tables, rows, starts, seq_lens, fills_right, block_size, window, scale, splits, threads, out
    ):
        """Write the ``rows`` of ``out`` [num_tokens, num_heads, v_dim], of ``query`` [num_tokens, num_heads, k_dim]
        over ``kv`` [num_slots, num_kv_heads, k_dim + v_dim]. Of row number i the last ``window`` (0: all) of
        ``seq_lens[i]`` tokens are read, in the blocks from ``tables[starts[i]]`` on. ``splits`` tasks share the KV
        heads of a row; neighbours are of different threads, so that each has some of the long ones."""
        num_heads = kv.shape[1] // splits
        group = query.shape[1] // kv.shape[1]
        num_rows = num_heads * group
        factor = np.float32(scale * LOG2_E)
        for thread in prange(threads):
            scaled, mean = _lines(num_rows, k_dim), _lines(num_rows, v_dim)
            scores = _lines(num_rows, TILE_KEYS)
            slots, next_slots = np.empty(TILE_KEYS, np.int64), np.empty(TILE_KEYS, np.int64)
            tops, sums = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32)
            for task in range(thread, len(rows) * splits, threads):
                number, first_head = task // splits, task % splits * num_heads
                row, start, end, right = rows[number], starts[number], seq_lens[number], fills_right[number]
                for head in range(num_rows):
                    for d in range(k_dim):
                        scaled[head, d] = query[row, first_head * group + head, d] * factor
                tops[:] = LEAST
                sums[:] = np.float32(0.0)
                mean[:] = np.float32(0.0)
                first = max(0, end - window) if window > 0 else 0
                _find_slots(next_slots, tables, start, first, end - first, block_size, right)
                for position in range(first, end, TILE_KEYS):
                    count, ahead = min(TILE_KEYS, end - position), min(TILE_KEYS, end - position - TILE_KEYS)
                    slots, next_slots = next_slots, slots
                    if ahead > 0:
                        _find_slots(next_slots, tables, start, position + TILE_KEYS, ahead, block_size, right)
                    for i in range(0, count, AT_A_TIME):
                        _fetch(kv, next_slots, i // 2, ahead, first_head, num_heads, k_dim + v_dim)
                        for each in range(num_rows):
                            score_slots(scores, each, i, scaled, kv, slots, first_head + each // group, k_dim)
                    scores[:, count:] = LEAST
                    _weigh(scores, tops, sums, mean, v_dim)
                    for i in range(0, count, AT_A_TIME):
                        _fetch(kv, next_slots, (TILE_KEYS + i) // 2, ahead, first_head, num_heads, k_dim + v_dim)
                        for each in range(num_rows):
                            add_values(mean, each, scores, i, kv, slots, first_head + each // group, k_dim, v_dim)
                for head in range(num_rows):
                    for d in range(v_dim):
                        out[row, first_head * group + head, d] = mean[head, d] / sums[head]

    return attend_rows


@njit(inline="always")
def _lines(num_rows, dim):
    """[num_rows, dim], from the beginning of a cache line on."""
    memory = np.empty(num_rows * dim + LANES, np.float32)
    first = -(memory.ctypes.data // 4) % LANES
    return memory[first : first + num_rows * dim].reshape(num_rows, dim)


@njit(inline="always")
def _find_slots(slots, tables, start, position, count, block_size, fills_right):
    """Of a tile; behind the last of ``count`` slots it is repeated."""
    block = position // block_size
    offset = position - block * block_size
    for i in range(TILE_KEYS):
        place = block_size - 1 - offset if fills_right else offset
        slots[i] = tables[start + block] * block_size + place
        if i + 1 < count:
            offset += 1
            if offset == block_size:
                offset = 0
                block += 1


@njit(inline="always")
def _fetch(kv, slots, first, count, first_head, num_heads, width):
    """Two of ``count`` slots of the next tile, which has twice as many turns as there are fours in a tile."""
    for i in range(first, min(first + AT_A_TIME // 2, count)):
        for head in range(first_head, first_head + num_heads):
            for lane in range(0, width, LANES):
                prefetch(kv, slots[i], head, lane)


@njit(inline="always")
def _weigh(scores, tops, sums, mean, v_dim):
    """Scores become weights; what was taken before is scaled to the new maximum."""
    for row in range(scores.shape[0]):
        top = tops[row]
        for i in range(TILE_KEYS):
            top = max(top, scores[row, i])
        decay = exp2(tops[row] - top)
        tops[row] = top
        for d in range(v_dim):
            mean[row, d] *= decay
        total = np.float32(0.0)
        for i in range(TILE_KEYS):
            weight = exp2(scores[row, i] - top)
            scores[row, i] = weight
            total += weight
        sums[row] = sums[row] * decay + total
