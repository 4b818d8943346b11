"""Gather arbitrary KV slots of all layers into one contiguous buffer, and scatter them back: checkpoint and restore.

A row of the buffer is one slot with all its layers, so that a pool of rows on the host can give and take back any
number of slots. Between a GPU and pinned host memory the slots pass through a buffer on the device: one asynchronous
copy keeps a copy engine busy, where a kernel that wrote to the host would hold the SMs for as long as the bus takes.
"""

import torch

from kernels.kv_layers import KVLayers


def gather_slots(layers: KVLayers, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Copy ``slots`` [num_slots], int64, to the rows of ``out`` [num_slots, slot_values], on the layers' device or in
    pinned host memory. On a GPU this returns before the copy is done: record an event before reading ``out``."""
    if layers.device.type == "cpu":
        for cache, columns in layers.columns(out):
            torch.index_select(cache, 0, slots, out=columns)
        return
    from kernels.gpu.slot_copy import copy_slots

    staging = out if out.is_cuda else layers.new_buffer(len(slots))
    copy_slots(layers, slots, staging, to_buffer=True)
    if staging is not out:
        out.copy_(staging, non_blocking=True)


def scatter_slots(layers: KVLayers, slots: torch.Tensor, buffer: torch.Tensor) -> None:
    """Copy the rows of ``buffer`` [num_slots, slot_values] to ``slots`` [num_slots], int64, all different: what
    ``gather_slots`` undone is. On a GPU this returns before ``buffer`` is read."""
    if layers.device.type == "cpu":
        for cache, columns in layers.columns(buffer):
            cache.index_copy_(0, slots, columns)
        return
    from kernels.gpu.slot_copy import copy_slots

    copy_slots(layers, slots, buffer.to(layers.device, non_blocking=True), to_buffer=False)
