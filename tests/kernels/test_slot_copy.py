"""Slots of many layers go to a buffer and come back, bit by bit."""

from functools import partial

import pytest
import torch

from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots, scatter_slots
from tests.kernels.rig import DEVICE, both_paths, dtypes


def caches(dtype: torch.dtype, device: str, shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Layers of 9 blocks of 4 slots, of (num_kv_heads, k_dim + v_dim) each."""
    torch.manual_seed(0)
    return [torch.randn(9, 4, heads, width).to(device, dtype) for heads, width in shapes]


def copiers(paged: bool):
    if not paged:
        return gather_slots, scatter_slots
    from kernels.gpu.slot_copy import copy_slots

    return partial(copy_slots, to_buffer=True), partial(copy_slots, to_buffer=False)


@dtypes
@both_paths
@pytest.mark.parametrize(
    "shapes",
    [[(2, 128)] * 3, [(2, 10), (3, 6), (2, 10)], [(1, 3)], [(8, 256)] * 2],
    ids=["alike", "unlike", "odd", "wide"],
)
def test_round_trip(shapes: list[tuple[int, int]], paged: bool, dtype: torch.dtype) -> None:
    device = DEVICE if paged else "cpu"
    gather, scatter = copiers(paged)
    source = caches(dtype, device, shapes)
    layers = KVLayers.of(source)
    slots = torch.tensor([35, 0, 7, 20], device=device)
    buffer = layers.new_buffer(len(slots))
    gather(layers, slots, buffer)

    rows = [torch.cat([cache.view(36, -1)[slot] for cache in layers.caches]) for slot in slots.tolist()]
    assert torch.equal(buffer, torch.stack(rows))

    target = [torch.full_like(cache, float("nan")) for cache in source]
    moved = torch.tensor([1, 34, 8, 2], device=device)
    scatter(KVLayers.of(target), moved, buffer)
    for cache, copy in zip(source, target, strict=True):
        assert torch.equal(copy.view(36, -1)[moved], cache.view(36, -1)[slots])
        untouched = [slot for slot in range(36) if slot not in moved.tolist()]
        assert copy.view(36, -1)[untouched].isnan().all()


@both_paths
def test_no_slots_are_a_copy_too(paged: bool) -> None:
    device = DEVICE if paged else "cpu"
    gather, scatter = copiers(paged)
    layers = KVLayers.of(caches(torch.float32, device, [(1, 4)]))
    before = layers.caches[0].clone()
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    gather(layers, nothing, layers.new_buffer(0))
    scatter(layers, nothing, layers.new_buffer(0))
    assert torch.equal(layers.caches[0], before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_round_trip_through_pinned_host_memory() -> None:
    layers = KVLayers.of(caches(torch.float16, "cuda", [(2, 128)] * 3))
    slots = torch.tensor([3, 30, 11], device="cuda")
    host = layers.new_buffer(3, "cpu")
    assert host.is_pinned()
    gather_slots(layers, slots, host)
    torch.cuda.synchronize()
    expected = torch.stack(
        [torch.cat([cache.view(36, -1)[slot] for cache in layers.caches]) for slot in slots.tolist()]
    )
    assert torch.equal(host, expected.cpu())
    for cache in layers.caches:
        cache.zero_()
    scatter_slots(layers, slots, host)
    restored = torch.stack(
        [torch.cat([cache.view(36, -1)[slot] for cache in layers.caches]) for slot in slots.tolist()]
    )
    assert torch.equal(restored, expected)
