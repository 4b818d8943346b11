"""Decodes and short chunks by the compiled kernel, around its tiles of keys."""

import importlib.util

import pytest
import torch

from kernels.cpu import row_attention
from tests.kernels.rig import Case, Shape

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")

LENGTHS = ((0, 1), (62, 1), (63, 1), (64, 1), (65, 1), (15, 1), (16, 1), (300, 1))
SHAPES = [
    Shape(LENGTHS, right=(1, 3, 5)),
    Shape(LENGTHS, num_heads=4, num_kv_heads=4, block_size=1, right=(7,)),
    Shape(LENGTHS, num_heads=14, num_kv_heads=2, block_size=32),
    Shape(LENGTHS, num_heads=8, num_kv_heads=2, head_dim=128, right=(0, 2, 4, 6)),
    Shape(LENGTHS, window=65, right=(1, 7)),
    Shape(LENGTHS, window=1, block_size=8, right=(1,)),
    Shape(((200, 1), (70, 1), (5, 9), (0, 120)), right=(0, 2)),
    Shape(((248, 8), (0, 256), (0, 17), (300, 8), (1, 2)), num_heads=3, num_kv_heads=1, right=(1, 3)),
    Shape(((100, 50), (20, 8), (0, 33)), num_heads=4, num_kv_heads=2, window=31, block_size=8, right=(2,)),
]


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(request.param)
    return int(request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_match_float64_reference(shape: Shape, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(*arguments: object) -> None:
        raise AssertionError("gathered")

    for gathering in ("_attend_decodes", "_attend_chunk"):
        monkeypatch.setattr(f"kernels.cpu.attention.{gathering}", gather)
    Case.of(shape, torch.float32, paged=False).check()


@pytest.mark.parametrize("length", [1, 17, 200])
@pytest.mark.parametrize("num_kv_heads", [1, 3, 4])
def test_threads_share_the_heads_of_one_decode(length: int, num_kv_heads: int, num_threads: int) -> None:
    Case.of(Shape(((length, 1),), 2 * num_kv_heads, num_kv_heads), torch.float32, paged=False).check()


def test_scores_far_apart() -> None:
    """Weights that vanish beside the largest one, and one that comes late."""
    case = Case.of(Shape(((150, 1),), 2, 1), torch.float32, paged=False)
    case.with_query(case.query * 1e3).check()


def test_what_the_kernel_suits() -> None:
    assert row_attention.suits(torch.float32, 64, 64)
    assert not row_attention.suits(torch.bfloat16, 64, 64)
    assert not row_attention.suits(torch.float32, 80, 80)
    assert not row_attention.suits(torch.float32, 64, 32)


def test_long_chunks_are_gathered_beside_rows(num_threads: int) -> None:
    parts = ((200, 1), (300, 9), (0, 257), (0, 30), (500, 120))
    Case.of(Shape(parts, num_heads=4, num_kv_heads=2, right=(1, 4)), torch.float32, paged=False).check()


def test_without_the_kernel_decodes_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(SHAPES[0], torch.float32, paged=False)
    in_place = case.attended()
    monkeypatch.setattr(row_attention, "suits", lambda *shape: False)
    torch.testing.assert_close(case.attended(), in_place, atol=1e-5, rtol=1e-5)
