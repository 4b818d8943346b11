"""Decodes and chunks in one launch: the same results as apart, and both kinds on every SM."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.gpu.tiles import LARGE_SHARED_BYTES, Gpu
from tests.kernels.rig import DEVICE, INTERPRETED, TOLERANCE, Case, Shape, dtypes, needs_triton

pytestmark = needs_triton

SHAPES = [
    Shape(((40, 1), (0, 2)), num_heads=2, num_kv_heads=2, right=(0,)),
    Shape(((700, 1), (2, 1), (64, 33), (1, 130)), num_heads=3, num_kv_heads=1, right=(1, 2)),
    Shape(((200, 1), (40, 1), (0, 70), (100, 50)), head_dim=80, num_heads=8, num_kv_heads=2, right=(0, 3)),
    Shape(((33, 1), (65, 1), (90, 40)), head_dim=128, num_heads=8, num_kv_heads=1, block_size=32, right=(1,)),
    Shape(((50, 1), (10, 1), (0, 40), (30, 40)), 4, 1, window=16, block_size=8, right=(1, 2)),
    Shape(((300, 1), (250, 1), (120, 70)), num_heads=3, num_kv_heads=1, window=129, right=(1, 2)),
    Shape(((20, 1), (6, 13)), head_dim=64, v_dim=32, num_heads=2, num_kv_heads=2, right=(1,)),
    Shape(((5, 1), (11, 1), (3, 9), (12, 1)), num_heads=3, num_kv_heads=1, block_size=1),
]
HEAD_256 = Shape(((33, 1), (70, 1), (10, 20)), head_dim=256, num_heads=3, num_kv_heads=1, block_size=32, right=(0, 2))


def check(case: Case, gpu: Gpu | None = None, num_splits: int | None = None) -> Any:
    """Against float64, in one launch; the batch afterwards. ``gpu``: that the work is cut for; None is the one here."""
    from kernels.gpu.attention import attend
    from kernels.gpu.batch import PagedBatch

    batch = case.metadata().batch
    assert isinstance(batch, PagedBatch)
    batch.is_fused, batch.gpu = True, gpu or batch.gpu
    out = attend(case.query, case.kv_cache, batch, case.scale, case.shape.window, num_splits)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double().cpu(), case.expected(), atol=tolerance, rtol=tolerance)
    return batch


@pytest.fixture
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.gpu import attention

    def launch(*_: object) -> None:
        raise AssertionError("a launch of one kind alone")

    monkeypatch.setattr(attention, "_launch", launch)


@pytest.mark.usefixtures("one_launch")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_matches_the_float64_reference(shape: Shape) -> None:
    check(Case.of(shape, torch.float32, paged=True))


@pytest.mark.usefixtures("one_launch")
@dtypes
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4]], ids=str)
def test_it_matches_in_every_dtype(shape: Shape, dtype: torch.dtype) -> None:
    check(Case.of(shape, dtype, paged=True))


@pytest.mark.usefixtures("one_launch")
def test_large_heads_match() -> None:
    check(Case.of(HEAD_256, torch.bfloat16, paged=True), Gpu(1, LARGE_SHARED_BYTES))


@pytest.mark.usefixtures("one_launch")
@pytest.mark.parametrize("num_splits", [2, 3, 5])
def test_splits_change_no_result(num_splits: int) -> None:
    """Of sequences so unlike that some splits of the shorter ones are empty."""
    parts = ((270, 1), (30, 1), (0, 1), (90, 40), (0, 5))
    check(Case.of(Shape(parts, 2, 1, right=(1, 3)), torch.float16, paged=True), num_splits=num_splits)


@pytest.mark.usefixtures("one_launch")
def test_each_kind_is_split_by_itself() -> None:
    """A long decode beside a chunk that reads little."""
    case = Case.of(Shape(((1500, 1), (0, 40)), 4, 2, right=(0,)), torch.float16, paged=True)
    check(case, Gpu(8, LARGE_SHARED_BYTES))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (HEAD_256, torch.float32),
        (Shape(((30, 1), (10, 9)), num_heads=48, num_kv_heads=1), torch.float32),
        (Shape(((30, 1), (10, 1)), 2, 1), torch.float32),
        (Shape(((30, 2), (10, 9)), 2, 1), torch.float32),
    ],
    ids=["large heads", "large groups", "decodes alone", "chunks alone"],
)
def test_what_does_not_share_a_launch_runs_apart(
    shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.gpu import attention

    def attend_fused(*_: object) -> None:
        raise AssertionError("one launch for both kinds")

    monkeypatch.setattr(attention, "attend_fused", attend_fused)
    check(Case.of(shape, dtype, paged=True))


@pytest.mark.usefixtures("one_launch")
@pytest.mark.parametrize("num_sms", [1, 3, 8])
def test_every_program_takes_its_turn_and_its_work(num_sms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.gpu.batch import PagedBatch

    handed: list[torch.Tensor] = []
    new_counters: Callable[[PagedBatch], torch.Tensor] = PagedBatch.new_counters

    def keep(batch: PagedBatch) -> torch.Tensor:
        handed.append(new_counters(batch))
        return handed[-1]

    monkeypatch.setattr(PagedBatch, "new_counters", keep)
    shape = Shape(((20, 1), (9, 1), (31, 1), (0, 90)), num_heads=6, num_kv_heads=3, right=(1,))
    batch = check(Case.of(shape, torch.float16, paged=True), Gpu(num_sms, LARGE_SHARED_BYTES), num_splits=1)
    [counters] = handed
    decodes, chunks, *of_sms = counters[: 2 + num_sms].tolist()
    num_decodes, num_chunks = 3 * 3, 3 * batch.chunk_tiles(32).count
    assert sum(of_sms) == num_decodes + num_chunks, "a turn for each program"
    assert decodes >= num_decodes and chunks >= num_chunks, "and what it found used up"
    if INTERPRETED:
        assert max(of_sms) - min(of_sms) <= 1, "programs go round the SMs"


def test_counters_are_made_anew() -> None:
    from kernels.gpu.batch import LAUNCHES

    batch: Any = Case.of(SHAPES[0], torch.float32, paged=True).metadata().batch
    for _ in range(LAUNCHES + 1):
        counters = batch.new_counters()
        assert len(counters) >= 2 + batch.gpu.num_sms and not counters.any()
        assert counters.data_ptr() % 16 == 0, "or Triton would compile for another alignment"
        counters.fill_(7)


@pytest.mark.parametrize(("num_decodes", "num_chunks"), [(1, 1), (5, 5), (300, 100), (64, 1000), (1, 50), (7, 3)])
@pytest.mark.parametrize("num_sms", [1, 4, 108])
def test_an_sm_takes_both_kinds_in_proportion(num_decodes: int, num_chunks: int, num_sms: int) -> None:
    """In any part of its programs; and among the first of all SMs too."""
    taken = turns(num_decodes, num_decodes + num_chunks, num_sms, count=64)
    share = num_decodes / (num_decodes + num_chunks)
    for start in (0, 5, 30):
        for end in range(start + 1, taken.shape[1]):
            assert (abs(taken[:, start:end].sum(axis=1) - share * (end - start)) < 1).all()
    for turn in range(5):
        assert abs(taken[:, turn].sum() - share * num_sms) <= 1


def turns(num_decode_work: int, num_work: int, num_sms: int, count: int) -> Any:
    """[num_sms, count], whether each SM's n-th program takes a decode."""
    from tests.kernels.turns_kernel import turns_kernel

    out = torch.empty(num_sms, count, dtype=torch.int32, device=DEVICE)
    turns_kernel[(num_sms,)](out, num_sms, num_decode_work, num_work, COUNT=count)
    return out.cpu().numpy()
