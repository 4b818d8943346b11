"""Copies of KV slots within the device and to and from the host, as one simultaneous assignment."""

import random

import pytest
import torch

from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots
from services.executor.engines.torch.host_pool import HostPool
from shared.scheduling.kv.slot_transfers import SlotOperations

NUM_BLOCKS, BLOCK, NUM_HOST_SLOTS = 6, 4, 9
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


def contents(layers: KVLayers) -> torch.Tensor:
    """[num_slots, slot_values], on the host."""
    out = layers.new_buffer(NUM_BLOCKS * BLOCK)
    gather_slots(layers, torch.arange(NUM_BLOCKS * BLOCK, device=layers.device), out)
    return out.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(5))
def test_every_source_is_read_before_any_slot_is_written(device: str, seed: int) -> None:
    rng = random.Random(seed)
    layers = KVLayers.of(
        [torch.randn(NUM_BLOCKS, BLOCK, heads, width, device=device) for heads, width in ((2, 8), (1, 12))]
    )
    pool = HostPool(layers, NUM_HOST_SLOTS)
    expected, on_host = contents(layers), torch.zeros(NUM_HOST_SLOTS, layers.slot_values)
    filled: list[int] = []
    started: list[SlotOperations] = []
    for _ in range(20):
        targets = rng.sample(range(NUM_BLOCKS * BLOCK), 10)
        restored = rng.sample(filled, rng.randint(0, min(4, len(filled))))
        checkpointed = rng.sample([slot for slot in range(NUM_HOST_SLOTS) if slot not in filled], rng.randint(0, 2))
        operations = SlotOperations(
            moves=[(rng.randrange(NUM_BLOCKS * BLOCK), slot) for slot in targets[4:]],
            restores=list(zip(restored, targets, strict=False)),
            checkpoints=[(rng.randrange(NUM_BLOCKS * BLOCK), slot) for slot in checkpointed],
        )
        before = expected.clone()
        for source, slot in operations.moves:
            expected[slot] = before[source]
        for source, slot in operations.restores:
            expected[slot] = on_host[source]
        for source, slot in operations.checkpoints:
            on_host[slot] = before[source]
        started.append(operations)
        if rng.random() < 0.7:
            for each in started:
                pool.start(each)
        if rng.random() < 0.6:
            assert pool.wait(started) >= 0.0
            assert torch.equal(contents(layers), expected), "in place before the forward pass"
            started.clear()
        filled = [slot for slot in filled if slot not in restored] + checkpointed
    pool.close()


def test_a_copy_that_fails_fails_its_step_and_no_other() -> None:
    layers = KVLayers.of([torch.randn(NUM_BLOCKS, BLOCK, 2, 8)])
    pool = HostPool(layers, NUM_HOST_SLOTS)
    bad, good = SlotOperations(moves=[(10_000, 0)]), SlotOperations(moves=[(3, 5)])
    pool.start(bad)
    pool.start(good)
    with pytest.raises((IndexError, RuntimeError)):
        pool.wait([bad])
    pool.wait([good])
    moved = contents(layers)
    assert torch.equal(moved[3], moved[5])
    pool.close()
