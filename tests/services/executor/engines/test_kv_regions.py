"""Where the blocks of KV tensors lie, whatever the order of their strides."""

import ctypes

import pytest
import torch

from services.executor.engines.torch.kv_regions import regions_of
from shared.replica.engine import KVRegions

NUM_BLOCKS = 7


def packed(*axes: tuple[str, int]) -> torch.Tensor:
    """[num_blocks, kv_heads, block_size, head_size] of distinct numbers, in memory in the order of ``axes``."""
    lengths = dict(axes)
    memory = torch.arange(torch.tensor(list(lengths.values())).prod().item(), dtype=torch.float32)
    tensor = memory.view(*lengths.values())
    names = list(lengths)
    return tensor.permute(*(names.index(name) for name in ("block", "head", "token", "value") if name in names))


BLOCK, HEAD, TOKEN, VALUE = ("block", NUM_BLOCKS), ("head", 3), ("token", 4), ("value", 5)


@pytest.mark.parametrize(
    ("axes", "num_runs"),
    [
        ((BLOCK, HEAD, TOKEN, VALUE), 1),
        ((BLOCK, TOKEN, HEAD, VALUE), 1),
        ((HEAD, BLOCK, TOKEN, VALUE), 3),
        ((HEAD, TOKEN, BLOCK, VALUE), 12),
    ],
)
def test_runs_of_a_block_are_its_numbers(axes: tuple[tuple[str, int], ...], num_runs: int) -> None:
    kv_cache = packed(*axes)
    found = regions_of([kv_cache], NUM_BLOCKS, "test")
    assert isinstance(found, KVRegions)
    assert len(found.regions) == num_runs
    for block in range(NUM_BLOCKS):
        assert sorted(numbers_of(found, block)) == sorted(kv_cache[block].flatten().tolist())
    assert found.block_bytes == kv_cache[0].numel() * 4


def test_layers_in_one_tensor_are_apart() -> None:
    together = torch.arange(2 * NUM_BLOCKS * 6, dtype=torch.float32).view(NUM_BLOCKS, 2, 6)
    layers = [together[:, 0], together[:, 1]]
    found = regions_of(layers, NUM_BLOCKS, "test")
    assert isinstance(found, KVRegions)
    for block in range(NUM_BLOCKS):
        assert numbers_of(found, block) == [*layers[0][block].tolist(), *layers[1][block].tolist()]


def test_without_the_first_block() -> None:
    whole = packed(HEAD, BLOCK, TOKEN, VALUE)
    found = regions_of([whole[1:]], NUM_BLOCKS - 1, "test")
    assert isinstance(found, KVRegions)
    assert sorted(numbers_of(found, 0)) == sorted(whole[1].flatten().tolist())


def test_layouts_differ_by_shape_dtype_and_order() -> None:
    kv_caches = [
        packed(BLOCK, HEAD, TOKEN, VALUE),
        packed(BLOCK, TOKEN, HEAD, VALUE),
        packed(HEAD, BLOCK, TOKEN, VALUE),
        packed(BLOCK, HEAD, ("token", 8), VALUE),
        packed(BLOCK, HEAD, TOKEN, VALUE).to(torch.bfloat16),
    ]
    layouts = {regions.layout for each in kv_caches if isinstance(regions := regions_of([each], 7, "a"), KVRegions)}
    assert len(layouts) == 5


def test_other_numbers_of_blocks_are_refused() -> None:
    assert isinstance(regions_of([packed(BLOCK, HEAD, TOKEN, VALUE)], NUM_BLOCKS + 1, "test"), str)


def numbers_of(found: KVRegions, block: int) -> list[float]:
    """Read by address."""
    numbers: list[float] = []
    for region in found.regions:
        count = region.block_bytes // 4
        numbers += (ctypes.c_float * count).from_address(region.address + block * region.stride)
    return numbers
