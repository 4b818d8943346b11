"""Where blocks of KV tensors lie in memory, for others who read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from shared.replica.engine import KVRegion, KVRegions


def regions_of(kv_caches: Iterable[torch.Tensor], num_blocks: int, layout: str) -> KVRegions | str:
    """Of the layers' tensors, each [num_blocks, ...] in any order of strides. ``layout``: what the numbers in a block
    stand for. A str says why the tensors cannot be told apart into blocks."""
    kv_caches = list(kv_caches)
    devices = {kv_cache.device for kv_cache in kv_caches}
    if len(devices) != 1 or any(len(kv_cache) != num_blocks for kv_cache in kv_caches):
        return f"its KV is not {num_blocks} blocks on one device"
    (device,) = devices
    of_layers = [_block_runs(kv_cache) for kv_cache in kv_caches]
    kinds = [_kind(kv_cache, runs) for kv_cache, runs in zip(kv_caches, of_layers, strict=True)]
    shapes = ", ".join(f"{len(list(equal))} layers of {kind}" for kind, equal in itertools.groupby(kinds))
    gpu = None if device.type == "cpu" else device.index or 0
    return KVRegions(f"{layout}: {shapes}", num_blocks, [run for runs in of_layers for run in runs], gpu)


def _block_runs(kv_cache: torch.Tensor) -> list[KVRegion]:
    """Each run of memory that a block has in a layer, by the first block's."""
    size, inner = kv_cache.element_size(), 1
    outer: list[tuple[int, int]] = []  # (length, stride in elements) of the dimensions that a run does not span
    block_stride = kv_cache.stride(0)
    dimensions = zip(kv_cache.shape[1:], kv_cache.stride()[1:], strict=True)
    for length, stride in sorted(dimensions, key=lambda each: each[1]):
        if length == 1:
            continue
        if not outer and stride == inner and inner * length <= block_stride:
            inner *= length
        else:
            outer.append((length, stride))
    starts = itertools.product(*(range(0, length * stride, stride) for length, stride in reversed(outer)))
    base = kv_cache.data_ptr()
    return [KVRegion(base + sum(start) * size, inner * size, block_stride * size) for start in starts]


def _kind(kv_cache: torch.Tensor, runs: list[KVRegion]) -> str:
    """What has to be the same of two layers for their blocks to be."""
    strides = kv_cache.stride()
    order = sorted(range(len(strides)), key=lambda dimension: -strides[dimension])
    shape, dtype = list(kv_cache.shape[1:]), str(kv_cache.dtype).removeprefix("torch.")
    return f"{shape} {dtype}, dimensions in memory {order}, in {len(runs)} x {runs[0].block_bytes} bytes"
