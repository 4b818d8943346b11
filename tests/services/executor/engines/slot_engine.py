"""An engine whose tokens depend on every KV slot that a sequence reads."""

import dataclasses
import random
import zlib
from collections.abc import MutableMapping

import msgspec

from services.executor.engines.sim import SimEngine
from shared.errors import EngineError
from shared.latency.linear import LinearLatencyModel
from shared.protocol.executors import EngineSpec
from shared.replica.engine import Sequence, StepBatch, StepResult
from shared.scheduling.kv.slot_transfers import SlotOperations

NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
GARBAGE = (-1, -1)


class SlotEngine(SimEngine):
    """The KV of a token is the token and its position. It is kept in slots, of device and host, as the batches say; the
    sampled token comes from all that is read, so that one wrong slot makes another output. With ``fail``, steps fail
    at this rate, and leave garbage wherever they may write."""

    def __init__(self, spec: EngineSpec, mean_output_tokens: float = 30.0, fail: float = 0.0, seed: int = 0) -> None:
        super().__init__(spec, NO_TIME, mean_output_tokens)
        self.slots: MutableMapping[int, tuple[int, int]] = {}
        self.host: dict[int, tuple[int, int]] = {}
        self.num_moved = 0
        self._copied: dict[int, SlotOperations] = {}  # by identity, for steps to come
        self._fail = fail
        self._rng = random.Random(seed)

    def execute(self, batch: StepBatch) -> StepResult:
        copied = self._copy(batch)
        written = [slot for sequence in batch.sequences for slot in self._write(sequence)]
        assert len(set(written)) == len(written), "two sequences write one slot"
        if self._rng.random() < self._fail:
            self.slots.update(dict.fromkeys(written, GARBAGE))
            for copies in copied:
                self.slots.update(dict.fromkeys([slot for _, slot in (*copies.moves, *copies.restores)], GARBAGE))
                self.host.update(dict.fromkeys([slot for _, slot in copies.checkpoints], GARBAGE))
            raise EngineError("bad step")
        return super().execute(StepBatch(batch.step, batch.sequences))

    def start_copies(self, operations: SlotOperations) -> None:
        """At once."""
        if id(operations) in self._copied:
            return
        self._copied[id(operations)] = operations
        device = [(slot, self.slots[source]) for source, slot in operations.moves]
        device += [(slot, self.host[source]) for source, slot in operations.restores]
        host = [(slot, self.slots[source]) for source, slot in operations.checkpoints]
        assert all(0 <= slot < self.spec.num_host_slots for slot, _ in host)
        self.slots.update(device)
        self.host.update(host)
        self.num_moved += len(operations.moves)

    def _copy(self, batch: StepBatch) -> list[SlotOperations]:
        """What it brings, where that has not begun."""
        for copies in batch.copies:
            self.start_copies(copies)
        return [self._copied.pop(id(copies)) for copies in batch.copies]

    def _write(self, sequence: Sequence) -> list[int]:
        start = sequence.num_computed_tokens
        written = [self._slot(sequence, start + index) for index in range(len(sequence.token_ids))]
        for index, slot in enumerate(written):
            self.slots[slot] = (start + index, sequence.token_ids[index])
        return written

    def _slot(self, sequence: Sequence, position: int) -> int:
        size = self.spec.block_size
        offset = size - 1 - position % size if sequence.fills_right else position % size
        return sequence.block_table[position // size] * size + offset

    def _token(self, sequence: Sequence) -> int:
        end = sequence.num_computed_tokens + len(sequence.token_ids)
        read = [self.slots[self._slot(sequence, position)] for position in range(end)]
        is_own = [position for position, _ in read] == list(range(end))
        assert is_own or self._fail, "reads what is not its own"
        seed = zlib.crc32(repr(read).encode(), sequence.sampling.seed)
        sampling = msgspec.structs.replace(sequence.sampling, seed=seed)
        return super()._token(dataclasses.replace(sequence, sampling=sampling))
