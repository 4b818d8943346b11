"""A pool of more than 2**31 values: offsets into it do not fit 32 bits. Only the touched pages of it take memory."""

from dataclasses import replace

import torch

from kernels.kv_layers import KVLayers
from tests.kernels.rig import Case, Shape, both_paths, needs_triton

FIRST_BLOCK = 1 << 20
NUM_SLOTS = 3


def far_pool(near: torch.Tensor) -> torch.Tensor:
    """The blocks of ``near`` [num_blocks, 16, 1, 128] at the end of a pool whose last offsets are beyond 2**31."""
    pool = torch.empty(FIRST_BLOCK + len(near), *near.shape[1:], dtype=near.dtype, device=near.device)
    assert near[0].numel() * FIRST_BLOCK >= 1 << 31
    pool[FIRST_BLOCK:] = near
    return pool


@both_paths
def test_attention_reaches_the_end_of_a_large_pool(paged: bool) -> None:
    near = Case.of(Shape(((20, 1), (0, 9)), 2, 1, right=(1,)), torch.float16, paged)
    sequences = [replace(s, block_table=[FIRST_BLOCK + block for block in s.block_table]) for s in near.sequences]
    far = replace(near, sequences=sequences, kv_cache=far_pool(near.kv_cache))
    assert torch.equal(far.attended(), near.attended())


@needs_triton
def test_writes_and_copies_reach_the_end_of_a_large_pool() -> None:
    from kernels.gpu.kv_write import write_kv
    from kernels.gpu.slot_copy import copy_slots

    near = Case.of(Shape(((20, 1),), 2, 1), torch.float16, paged=True).kv_cache
    pool = far_pool(near)
    slots = FIRST_BLOCK * 16 + torch.arange(NUM_SLOTS, device=near.device) * 7
    key, value = torch.randn(2, NUM_SLOTS, 1, 64, device=near.device, dtype=torch.float16)
    write_kv(key, value, pool, slots)
    written = torch.cat((key, value), dim=-1).view(NUM_SLOTS, 128)
    assert torch.equal(pool.view(-1, 128)[slots], written)

    layers = KVLayers.of([pool])
    buffer = layers.new_buffer(NUM_SLOTS)
    copy_slots(layers, slots, buffer, to_buffer=True)
    assert torch.equal(buffer, written)
    copy_slots(layers, slots + 1, buffer, to_buffer=False)
    assert torch.equal(pool.view(-1, 128)[slots + 1], written)
