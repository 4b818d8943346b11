"""How attention is cut into programs."""

import numpy as np
import pytest
import torch

from kernels.gpu.tiles import MAX_SPLITS, choose_num_splits, chunk_tile_shape, cut_chunks, decode_tile_shape

H100_SMS = 132
BFLOAT16_128 = decode_tile_shape(4, 128, torch.bfloat16, shared_bytes=1 << 16)


def test_a_full_gpu_is_not_split() -> None:
    assert choose_num_splits(32 * 8, 8192, BFLOAT16_128, H100_SMS) == 1


def test_one_long_decode_fills_the_gpu() -> None:
    splits = choose_num_splits(8, 131072, BFLOAT16_128, H100_SMS)
    assert 0.85 <= 8 * splits / (H100_SMS * BFLOAT16_128.programs_per_sm) <= 1


def test_short_contexts_are_not_split() -> None:
    assert choose_num_splits(8, 300, BFLOAT16_128, H100_SMS) == 1


@pytest.mark.parametrize("num_programs", [1, 7, 40, 100, 139, 200, 263])
@pytest.mark.parametrize("max_kv_len", [1, 256, 2000, 50_000])
def test_splits_are_bounded_and_never_leave_more_idle(num_programs: int, max_kv_len: int) -> None:
    splits = choose_num_splits(num_programs, max_kv_len, BFLOAT16_128, H100_SMS)
    assert 1 <= splits <= max(1, min(MAX_SPLITS, max_kv_len // 256))
    places = H100_SMS * BFLOAT16_128.programs_per_sm

    def idle(programs: int) -> float:
        return 1 - programs / (-(-programs // places) * places)

    assert idle(num_programs * splits) <= idle(num_programs) + 0.15


def test_chunks_are_cut_whole_and_the_longest_read_comes_first() -> None:
    num_new, num_computed = np.array([5, 1, 64]), np.array([100, 0, 90])
    cut = cut_chunks(num_new, num_computed, 32)
    assert sorted(zip(*cut.tolist(), strict=True)) == [(0, 0), (1, 0), (2, 0), (2, 32)]
    assert [tuple(tile) for tile in cut.T.tolist()] == [(2, 32), (0, 0), (2, 0), (1, 0)]


@pytest.mark.parametrize("group_size", [1, 3, 4, 8, 24, 71])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_query_head_of_a_kv_head_fits_a_tile(group_size: int, head_dim: int, dtype: torch.dtype) -> None:
    for shape in (
        decode_tile_shape(group_size, head_dim, dtype, shared_bytes=1 << 18),
        decode_tile_shape(group_size, head_dim, dtype, shared_bytes=1 << 16),
        chunk_tile_shape(group_size, head_dim, dtype, shared_bytes=1 << 17),
    ):
        assert shape.rows >= max(16, group_size)
        assert shape.rows & (shape.rows - 1) == 0 and shape.keys & (shape.keys - 1) == 0
