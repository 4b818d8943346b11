"""Copies of KV slots within the device and to and from the host, as one simultaneous assignment."""

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots
from services.executor.engines.torch import host_pool
from services.executor.engines.torch.host_pool import HostPool, HostSlots, host_pool_of
from services.executor.engines.torch.host_shards import ShardedHostSlots, serve_host_slots
from shared.errors import EngineError, EngineLostError
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


@contextmanager
def sharded(pools: Sequence[HostPool]) -> Iterator[ShardedHostSlots]:
    """Each in a thread, as in a process of its own."""
    pairs = [socket.socketpair() for _ in pools]
    serving = [
        threading.Thread(target=serve_host_slots, args=(pool, theirs))
        for pool, (_, theirs) in zip(pools, pairs, strict=True)
    ]
    for thread in serving:
        thread.start()
    slots = ShardedHostSlots([ours for ours, _ in pairs])
    yield slots
    slots.close()
    for thread in serving:
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def alone(layers: KVLayers) -> Iterator[HostPool]:
    pool = HostPool(layers, NUM_HOST_SLOTS)
    yield pool
    pool.close()


@pytest.mark.parametrize("is_sharded", [False, True], ids=["alone", "sharded"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(5))
def test_every_source_is_read_before_any_slot_is_written(device: str, seed: int, is_sharded: bool) -> None:
    """Of two processes each has one of the layers."""
    caches = [torch.randn(NUM_BLOCKS, BLOCK, heads, width, device=device) for heads, width in ((2, 8), (1, 12))]
    layers = KVLayers.of(caches)
    if is_sharded:
        with sharded([HostPool(KVLayers.of([cache]), NUM_HOST_SLOTS) for cache in caches]) as slots:
            copy_at_random(slots, layers, random.Random(seed))
    else:
        with alone(layers) as pool:
            copy_at_random(pool, layers, random.Random(seed))


def copy_at_random(pool: HostSlots, layers: KVLayers, rng: random.Random) -> None:
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


def test_only_what_is_copied_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes up to twice as much for what it pins as it is asked for, and keeps it."""
    new_buffer, asked = KVLayers.new_buffer, list[int]()

    def noted(layers: KVLayers, num_slots: int, device: torch.device | str | None = None) -> torch.Tensor:
        asked.append(num_slots)
        return new_buffer(layers, num_slots, device)

    monkeypatch.setattr(KVLayers, "new_buffer", noted)
    pool = HostPool(KVLayers.of([torch.randn(NUM_BLOCKS, BLOCK, 2, 8)]), 1000)
    pool.close()
    assert pool.num_slots == 1000 and max(asked) == NUM_BLOCKS * BLOCK, "those that were copied to time it"


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


def test_a_part_that_is_not_copied_fails_its_step_and_no_other() -> None:
    """The second process has fewer blocks."""
    caches = [torch.randn(num_blocks, BLOCK, 2, 8) for num_blocks in (NUM_BLOCKS, NUM_BLOCKS - 1)]
    last = NUM_BLOCKS * BLOCK - 1
    with sharded([HostPool(KVLayers.of([cache]), NUM_HOST_SLOTS) for cache in caches]) as slots:
        bad, good = SlotOperations(moves=[(last, 0)]), SlotOperations(moves=[(3, 5)])
        slots.start(bad)
        slots.start(good)
        with pytest.raises(EngineError, match="process 1 of the model did not copy slots: IndexError"):
            slots.wait([bad])
        slots.wait([good])
    for cache in caches:
        assert torch.equal(cache[0, 3], cache[1, 1])


def test_a_process_that_ends_while_it_is_asked_is_lost() -> None:
    ours, theirs = socket.socketpair()
    whole = HostPool(KVLayers.of([torch.randn(NUM_BLOCKS, BLOCK, 2, 8)]), NUM_HOST_SLOTS)
    serving = threading.Thread(target=serve_host_slots, args=(whole, theirs.dup()))
    serving.start()
    slots, copies = ShardedHostSlots([ours]), SlotOperations(moves=[(3, 5)])
    slots.wait([copies])
    theirs.shutdown(socket.SHUT_RDWR)
    for again in (SlotOperations(moves=[(3, 5)]), SlotOperations(moves=[(3, 5)])):
        with pytest.raises(EngineLostError, match="process 0 of the model is gone"):
            slots.wait([again])
    slots.close()
    serving.join(10)
    assert not serving.is_alive()


def test_the_smallest_and_the_slowest_pool_count() -> None:
    cache = torch.randn(NUM_BLOCKS, BLOCK, 2, 8)
    pools = [HostPool(KVLayers.of([cache.clone()]), num_slots) for num_slots in (7, 5, 6)]
    with sharded(pools) as slots:
        assert (slots.num_slots, slots.ms_per_slot) == (5, max(pool.ms_per_slot for pool in pools))


def test_pools_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.randn(NUM_BLOCKS, BLOCK, 2, 8)  # a slot has 64 bytes
    monkeypatch.setattr(host_pool, "available_memory_bytes", lambda: 4 * 12 * 64)
    for num_pools, num_slots in ((1, 12), (2, 6), (24, 1)):
        pool = host_pool_of([cache.clone()], None, num_pools)
        assert pool is not None and pool.num_slots == num_slots
        pool.close()
