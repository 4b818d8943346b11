"""KV slots in host memory, and the copies between them and the device: the checkpoint engine of BROS (section 6).

Copies run beside the forward pass of the step before, one after the other. Each is one simultaneous assignment, so
every source is gathered before anything is written. A forward pass waits for the moves and restores that its step has;
checkpoints cross the bus beside it. Each direction has a thread, and on CUDA a stream.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from functools import partial

import torch

from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots, scatter_slots
from shared.errors import ConfigError
from shared.process.memory import available_memory_bytes
from shared.scheduling.kv.slot_transfers import SlotOperations

MEASURED_SLOTS = 512  # to time their copying
HOST_KV_SHARE = 0.25  # of the memory that is free, when nobody says how much checkpointed KV may take

set_num_threads: Callable[[int], None] = torch.set_num_threads  # vLLM replaces it while it makes an engine


class HostSlots(ABC):
    """Slots of host memory, in this process or in several that each have a part of every slot. ``ms_per_slot``: how
    long one takes to come back, measured."""

    num_slots: int
    ms_per_slot: float

    def __init__(self) -> None:
        self._started: dict[int, tuple[SlotOperations, Sequence[Future[None]]]] = {}  # by the identity of the former

    def start(self, copies: SlotOperations) -> None:
        """Begin them beside whatever runs, after all that were begun before; nothing where they were. What they read is
        written by then: steps that wrote it have ended."""
        if id(copies) not in self._started:
            self._started[id(copies)] = copies, self._begin(copies)

    def wait(self, steps_copies: Sequence[SlotOperations]) -> float:
        """Until a step's moves and restores are in place, and what is to leave is out of its way; returns the
        milliseconds that took. Raises what a copy raised, once none of them writes any more."""
        start_s = time.perf_counter()
        for copies in steps_copies:
            self.start(copies)
        placed = [each for copies in steps_copies for each in self._started.pop(id(copies))[1]]
        wait_for(placed)
        for each in placed:
            each.result()
        return (time.perf_counter() - start_s) * 1e3

    @abstractmethod
    def close(self) -> None:
        """Once no step runs; copies that were begun are done first."""

    @abstractmethod
    def _begin(self, copies: SlotOperations) -> Sequence[Future[None]]:
        """Each is done when a part of the slots is in place."""


class HostPool(HostSlots):
    """In this process. Slots lie in memory of just their size: only what crosses a GPU's bus is pinned, since torch
    rounds up what it pins to a power of two."""

    def __init__(self, layers: KVLayers, num_slots: int) -> None:
        """Before the KV caches hold anything. Raises RuntimeError where there is no memory for the slots."""
        super().__init__()
        self.num_slots = num_slots
        self._layers = layers
        self._rows = torch.empty(num_slots, layers.slot_values, dtype=layers.caches[0].dtype)
        self._is_gpu = layers.device.type == "cuda"
        if self._is_gpu:
            self._incoming_stream = torch.cuda.Stream(layers.device)  # type: ignore[no-untyped-call]
            self._outgoing_stream = torch.cuda.Stream(layers.device)  # type: ignore[no-untyped-call]
        # Beside a forward pass that runs on the processor: OpenMP's threads are for that.
        prepare = None if self._is_gpu else partial(set_num_threads, 1)
        self._placing = ThreadPoolExecutor(1, "kv-restores", prepare)
        self._keeping = ThreadPoolExecutor(1, "kv-checkpoints", prepare)
        self._kept: dict[int, Future[None]] = {}  # host slot -> its latest checkpoint
        self.ms_per_slot = self._measure()

    def close(self) -> None:
        """See ``HostSlots.close``."""
        self._placing.shutdown()
        self._keeping.shutdown()

    def _begin(self, copies: SlotOperations) -> Sequence[Future[None]]:
        return [self._placing.submit(self._place, copies)]

    def _measure(self) -> float:
        num_blocks, block_size = self._layers.caches[0].shape[:2]
        num_slots = min(self.num_slots, num_blocks * block_size, MEASURED_SLOTS)
        there = SlotOperations(checkpoints=[(slot, slot) for slot in range(num_slots)])
        back = SlotOperations(restores=[(slot, slot) for slot in range(num_slots)])
        for copies in (there, back, back):  # the last is warm
            elapsed_ms = self.wait([copies])
        return elapsed_ms / num_slots

    @torch.inference_mode()
    def _place(self, copies: SlotOperations) -> None:
        """Write moves and restores, and have checkpoints kept."""
        num_moves, layers = len(copies.moves), self._layers
        sources = [source for source, _ in (*copies.moves, *copies.checkpoints)]
        with torch.cuda.stream(self._incoming_stream) if self._is_gpu else nullcontext():
            leaving = layers.new_buffer(len(sources))  # what is read of the device
            gather_slots(layers, _indices(sources, layers.device), leaving)
            outgoing = self._send(leaving[num_moves:])
            incoming = self._incoming(copies)
            kept = self._keeping.submit(self._keep, copies, outgoing)
            self._kept.update(dict.fromkeys((host_slot for _, host_slot in copies.checkpoints), kept))
            for targets, rows in ((copies.moves, leaving[:num_moves]), (copies.restores, incoming)):
                scatter_slots(layers, _indices([slot for _, slot in targets], layers.device), rows)
            if self._is_gpu:
                self._incoming_stream.synchronize()

    def _send(self, leaving: torch.Tensor) -> torch.Tensor:
        """To the host: on a GPU it is there when the stream of what goes out is done."""
        if not self._is_gpu:
            return leaving
        self._outgoing_stream.wait_stream(self._incoming_stream)
        with torch.cuda.stream(self._outgoing_stream):
            outgoing = self._layers.new_buffer(len(leaving), "cpu")
            outgoing.copy_(leaving, non_blocking=True)
        leaving.record_stream(self._outgoing_stream)
        return outgoing

    def _incoming(self, copies: SlotOperations) -> torch.Tensor:
        """[num_restores, slot_values], on the host, once it is there. Raises what kept a checkpoint from it."""
        for host_slot, _ in copies.restores:
            kept = self._kept.pop(host_slot, None)
            if kept is not None:
                kept.result()
        incoming = self._layers.new_buffer(len(copies.restores), "cpu")
        return torch.index_select(self._rows, 0, _indices([slot for slot, _ in copies.restores]), out=incoming)

    @torch.inference_mode()
    def _keep(self, copies: SlotOperations, outgoing: torch.Tensor) -> None:
        if self._is_gpu:
            self._outgoing_stream.synchronize()
        self._rows.index_copy_(0, _indices([slot for _, slot in copies.checkpoints]), outgoing)


def _indices(slots: list[int], device: torch.device | None = None) -> torch.Tensor:
    return torch.tensor(slots, dtype=torch.int64, device=device)


def host_pool_of(kv_caches: Sequence[torch.Tensor], num_slots: int | None, num_pools: int = 1) -> HostPool | None:
    """For the KV caches of a model, of ``KVLayers``' shape, before they hold anything. ``num_slots`` None takes as many
    as they have, or what memory allows each of ``num_pools`` on this machine; 0 is no pool. Raises ConfigError where
    there is no memory for them."""
    if num_slots == 0:
        return None
    layers = KVLayers.of(kv_caches)
    slot_bytes = layers.slot_values * layers.caches[0].element_size()
    if num_slots is None:
        num_blocks, block_size = layers.caches[0].shape[:2]
        share_bytes = int(available_memory_bytes() * HOST_KV_SHARE) // num_pools
        num_slots = min(num_blocks * block_size, max(1, share_bytes // slot_bytes))
    try:
        return HostPool(layers, num_slots)
    except RuntimeError as error:
        raise ConfigError(f"no memory for {num_slots} host slots of {slot_bytes} bytes: ask for fewer") from error
