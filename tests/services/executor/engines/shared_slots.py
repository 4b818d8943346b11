"""The slots of a ``SlotEngine`` in memory that other processes have, too: each has all, in numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from shared.protocol.executors import EngineSpec
from shared.replica.engine import KVRegions, KVShards
from tests.services.executor.engines.slot_engine import SlotEngine

SLOT_BYTES = 16


class SharedSlots(MutableMapping[int, tuple[int, int]]):
    """A slot is (position, token) in the first part; in part n, n more of each. One that differs from part to part, or
    was never written, is a KeyError."""

    def __init__(self, parts: Sequence[np.ndarray[Any, np.dtype[np.uint8]]]) -> None:
        """``parts``: [num_blocks, bytes of a block], with room for SLOT_BYTES a slot."""
        self._parts = [part.reshape(-1).view(np.int64).reshape(-1, 2) for part in parts]

    def __getitem__(self, slot: int) -> tuple[int, int]:
        position, token = self._parts[0][slot].tolist()
        for number, part in enumerate(self._parts):
            if part[slot].tolist() != [position + number, token + number]:
                raise KeyError(f"slot {slot} is not whole: {[each[slot].tolist() for each in self._parts]}")
        return position, token

    def __setitem__(self, slot: int, held: tuple[int, int]) -> None:
        for number, part in enumerate(self._parts):
            part[slot] = [held[0] + number, held[1] + number]

    def __delitem__(self, slot: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._parts[0])


class SharedSlotEngine(SlotEngine):
    """A SlotEngine whose KV others read out of the processes that have it. Its steps take no time."""

    def __init__(
        self, spec: EngineSpec, parts: Sequence[np.ndarray[Any, np.dtype[np.uint8]]], shards: KVShards
    ) -> None:
        super().__init__(replace(spec, engine="slots", takes_steps_ahead=False, is_interruptible=False))
        self.slots = SharedSlots(parts)
        self._shards = shards

    def kv_regions(self) -> KVRegions | KVShards | str:
        return self._shards
