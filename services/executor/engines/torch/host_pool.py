"""KV slots in host memory, and the copies between them and the device: the checkpoint engine of BROS (section 6).

A step's copies are one simultaneous assignment, so every source is gathered before anything is written. On CUDA they
run on a stream of their own: the forward pass waits for what it reads (moves and restores), and checkpoints cross the
bus while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots, scatter_slots
from services.executor.engines.torch.device import host_memory_bytes
from shared.errors import ConfigError, EngineError
from shared.scheduling.kv.slot_transfers import SlotOperations

MEASURED_SLOTS = 512  # to time their copying


class HostPool:
    """A bounded number of slots of host memory, pinned where the device is a GPU. ``ms_per_slot``: how long one takes
    to come back, measured here on some."""

    def __init__(self, layers: KVLayers, num_slots: int) -> None:
        """Before the KV caches hold anything. Raises RuntimeError where there is no memory for the slots."""
        self.num_slots = num_slots
        self._layers = layers
        self._rows = layers.new_buffer(num_slots, "cpu")  # [num_slots, slot_values]
        is_gpu = layers.device.type == "cuda"
        self._stream = torch.cuda.Stream(layers.device) if is_gpu else None  # type: ignore[no-untyped-call]

        self.ms_per_slot = self._measure()

    @contextmanager
    def copied(self, operations: SlotOperations) -> Iterator[None]:
        """Around a forward pass: what it reads is in place when it begins, checkpoints are when this ends."""
        if self._stream is None:
            self._copy(operations)
            yield
            return
        outgoing, done = self._copy_on_stream(operations, self._stream)
        try:
            yield
        finally:
            done.synchronize()
            self._keep(operations, outgoing)

    def _measure(self) -> float:
        num_blocks, block_size = self._layers.caches[0].shape[:2]
        num_slots = min(self.num_slots, num_blocks * block_size, MEASURED_SLOTS)
        there = SlotOperations(checkpoints=[(slot, slot) for slot in range(num_slots)])
        back = SlotOperations(restores=[(slot, slot) for slot in range(num_slots)])
        for operations in (there, back, back):  # the last is warm
            start_s = time.perf_counter()
            with self.copied(operations):
                if self._stream is not None:
                    torch.cuda.current_stream(self._layers.device).synchronize()
            elapsed_s = time.perf_counter() - start_s
        return elapsed_s * 1e3 / num_slots

    def _copy(self, operations: SlotOperations) -> None:
        leaving, incoming = self._gather(operations), self._incoming(operations)
        num_moves = len(operations.moves)
        self._keep(operations, leaving[num_moves:])
        self._scatter(operations, leaving[:num_moves], incoming)

    def _copy_on_stream(
        self, operations: SlotOperations, stream: torch.cuda.Stream
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Returns the checkpoints, pinned, and the event after which they are there."""
        current = torch.cuda.current_stream(self._layers.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            leaving = self._gather(operations)
            num_moves = len(operations.moves)
            incoming = self._incoming(operations).to(self._layers.device, non_blocking=True)
            self._scatter(operations, leaving[:num_moves], incoming)
            ready = stream.record_event()
            outgoing = self._layers.new_buffer(len(operations.checkpoints), "cpu")
            outgoing.copy_(leaving[num_moves:], non_blocking=True)
            done = stream.record_event()
        current.wait_event(ready)
        return outgoing, done

    def _gather(self, operations: SlotOperations) -> torch.Tensor:
        """[num_moves + num_checkpoints, slot_values], on the device: what is read of it."""
        sources = [source for source, _ in (*operations.moves, *operations.checkpoints)]
        leaving = self._layers.new_buffer(len(sources))
        gather_slots(self._layers, self._indices(sources), leaving)
        return leaving

    def _incoming(self, operations: SlotOperations) -> torch.Tensor:
        """[num_restores, slot_values], on the host."""
        incoming = self._layers.new_buffer(len(operations.restores), "cpu")
        sources = torch.tensor([source for source, _ in operations.restores], dtype=torch.int64)
        return torch.index_select(self._rows, 0, sources, out=incoming)

    def _scatter(self, operations: SlotOperations, moved: torch.Tensor, incoming: torch.Tensor) -> None:
        slots = self._indices([slot for _, slot in (*operations.moves, *operations.restores)])
        scatter_slots(self._layers, slots, torch.cat((moved, incoming)))

    def _keep(self, operations: SlotOperations, outgoing: torch.Tensor) -> None:
        slots = torch.tensor([slot for _, slot in operations.checkpoints], dtype=torch.int64)
        self._rows.index_copy_(0, slots, outgoing)

    def _indices(self, slots: list[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._layers.device)


def slots_copied(host: HostPool | None, operations: SlotOperations) -> AbstractContextManager[None]:
    """Around a step's forward pass. Raises EngineError where there is something to copy and no host pool."""
    if not operations:
        return nullcontext()
    if host is None:
        raise EngineError("slots cannot be copied: the engine was loaded without host slots")
    return host.copied(operations)


def host_pool_of(kv_caches: Sequence[torch.Tensor], num_slots: int | None) -> HostPool | None:
    """For the KV caches of a model, of ``KVLayers``' shape, before they hold anything. ``num_slots`` None takes as many
    as they have, or what memory allows; 0 is no pool. Raises ConfigError where there is no memory for them."""
    if num_slots == 0:
        return None
    layers = KVLayers.of(kv_caches)
    slot_bytes = layers.slot_values * layers.caches[0].element_size()
    if num_slots is None:
        num_blocks, block_size = layers.caches[0].shape[:2]
        num_slots = min(num_blocks * block_size, max(1, host_memory_bytes() // slot_bytes))
    try:
        return HostPool(layers, num_slots)
    except RuntimeError as error:
        raise ConfigError(f"no memory for {num_slots} host slots of {slot_bytes} bytes: ask for fewer") from error
