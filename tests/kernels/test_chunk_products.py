"""Chunks as matrix products, around the sizes of their blocks and padding."""

import pytest
import torch

from kernels.cpu import chunk_products
from kernels.cpu.batch import Chunk
from kernels.cpu.chunk_products import attend_causally, suits
from tests.kernels.rig import Case, Shape

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")

SHAPES = [
    Shape(((0, 96),)),
    Shape(((0, 127), (0, 128), (0, 129)), num_heads=3, num_kv_heads=1, right=(1,)),
    Shape(((128, 128), (31, 97)), num_heads=4, num_kv_heads=2, right=(0,)),
    Shape(((300, 257), (40, 1), (0, 8)), num_heads=4, num_kv_heads=1, right=(0,)),
    Shape(((5, 160),), num_heads=2, num_kv_heads=2, head_dim=80, block_size=32),
    Shape(((20, 130),), num_heads=2, num_kv_heads=1, v_dim=32),
    Shape(((10, 120),), num_heads=3, num_kv_heads=1, window=130),
    Shape(((10, 120),), num_heads=3, num_kv_heads=1, window=129),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_match_float64_reference(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that no window narrows are computed as products, and only those; a mask is made for the others alone."""
    calls: list[int] = []
    masked: list[int] = []
    make_mask = Chunk.mask

    def noted(query: torch.Tensor, kv: torch.Tensor, scale: float, out: torch.Tensor) -> None:
        calls.append(len(query))
        attend_causally(query, kv, scale, out)

    def noted_mask(chunk: Chunk, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        masked.append(chunk.end - chunk.start)
        return make_mask(chunk, window, like)

    monkeypatch.setattr("kernels.cpu.row_attention.suits", lambda *shape: False)
    monkeypatch.setattr("kernels.cpu.attention.attend_causally", noted)
    monkeypatch.setattr(Chunk, "mask", noted_mask)
    Case.of(shape, torch.float32, paged=False).check()
    whole = [new for computed, new in shape.parts if shape.window is None or shape.window >= computed + new]
    assert calls == [new for new in whole if new >= chunk_products.MIN_TOKENS]
    assert masked == [new for _, new in shape.parts if new not in calls]


def test_what_products_suit() -> None:
    query = torch.zeros(128, 3, 64)
    assert suits(query, 128)
    assert not suits(query, 16), "a short chunk gains nothing"
    assert not suits(query.bfloat16(), 128), "torch's own attention uses oneDNN for it"
