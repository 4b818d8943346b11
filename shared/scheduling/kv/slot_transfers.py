"""KV slots on their way between the device's blocks and host memory: BROS section 5.2, "all swapping operations are
consolidated".

Between two steps a slot may be told to move several times. What is kept is where each slot's contents will be, and
where they are now, so that a step executes at most one copy into each slot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SlotOperations:
    """Copies of KV slots, of all layers: one simultaneous assignment. Every source is read as it was before any slot
    is written, and no slot is written twice. Device slots are ``block * block_size + offset``; host slots count from
    0. No host slot is both read and written."""

    moves: list[tuple[int, int]] = field(default_factory=list)  # device slot -> device slot
    restores: list[tuple[int, int]] = field(default_factory=list)  # host slot -> device slot
    checkpoints: list[tuple[int, int]] = field(default_factory=list)  # device slot -> host slot

    def __bool__(self) -> bool:
        return bool(self.moves or self.restores or self.checkpoints)


def worthless(failed: SlotOperations, later: Iterable[SlotOperations]) -> tuple[set[int], set[int]]:
    """Device and host slots whose contents are not what they should be: what failed operations were to write, and
    what ``later`` ones, in their order, make of that."""
    device = {slot for _, slot in (*failed.moves, *failed.restores)}
    host = {slot for _, slot in failed.checkpoints}
    for operations in later:
        sources = [(slot, source in device) for source, slot in operations.moves]
        sources += [(slot, source in host) for source, slot in operations.restores]
        checkpoints = [(slot, source in device) for source, slot in operations.checkpoints]
        for slots, copies in ((device, sources), (host, checkpoints)):
            for slot, is_worthless in copies:
                (slots.add if is_worthless else slots.discard)(slot)
    return device, host


class SlotTransfers:
    """A bounded pool of host slots, and the copies since the last ``take``."""

    def __init__(self, num_host_slots: int) -> None:
        self.num_host_slots = num_host_slots
        self._num_touched = 0  # host slots that have ever been taken
        self._freed: list[int] = []
        self._moves: dict[int, int] = {}  # destination -> source, as are the next two
        self._restores: dict[int, int] = {}
        self._checkpoints: dict[int, int] = {}
        self._leaving: dict[int, None] = {}  # host slots whose contents are read by the next step, and then free

    @property
    def num_host_free(self) -> int:
        return self.num_host_slots - self._num_touched + len(self._freed)

    @property
    def has_arrivals(self) -> bool:
        """Some device slot is to be written."""
        return bool(self._moves or self._restores)

    def checkpoint(self, slot: int) -> int | None:
        """Bring a device slot to the host; returns the host slot, None where there is none left."""
        restored = self._restores.pop(slot, None)
        if restored is not None:  # it has not left the host yet
            del self._leaving[restored]
            return restored
        if self.num_host_free == 0:
            return None
        host_slot = self._freed.pop() if self._freed else self._num_touched
        self._num_touched = max(self._num_touched, host_slot + 1)
        self._checkpoints[host_slot] = self._moves.pop(slot, slot)
        return host_slot

    def restore(self, host_slot: int, slot: int) -> None:
        """Bring a host slot back to a device slot, and free it."""
        source = self._checkpoints.pop(host_slot, None)
        if source is None:
            self._restores[slot] = host_slot
            self._leaving[host_slot] = None
            return
        self._freed.append(host_slot)  # it has not left the device yet
        if source != slot:
            self._moves[slot] = source

    def move(self, source: int, slot: int) -> None:
        """From one device slot to another."""
        restored = self._restores.pop(source, None)
        if restored is not None:
            self._restores[slot] = restored
            return
        source = self._moves.pop(source, source)
        if source != slot:
            self._moves[slot] = source

    def forget(self, slot: int) -> None:
        """Nobody needs what is in a device slot, or on its way there."""
        self._moves.pop(slot, None)
        self._restores.pop(slot, None)

    def release(self, host_slot: int) -> None:
        """Nobody needs what is in a host slot, or on its way there."""
        self._checkpoints.pop(host_slot, None)
        self._freed.append(host_slot)

    def peek(self) -> SlotOperations:
        """What ``take`` would return."""
        return SlotOperations(
            [(source, slot) for slot, source in self._moves.items()],
            [(host_slot, slot) for slot, host_slot in self._restores.items()],
            [(source, host_slot) for host_slot, source in self._checkpoints.items()],
        )

    def take(self) -> SlotOperations:
        """The copies to execute before the next step's forward pass; from here on they count as done."""
        operations = self.peek()
        self._moves.clear()
        self._restores.clear()
        self._checkpoints.clear()
        self._freed.extend(self._leaving)
        self._leaving.clear()
        return operations

    def held(self) -> Iterator[int]:
        """Host slots that are neither free nor leaving."""
        free = {*self._freed, *self._leaving}
        return (host_slot for host_slot in range(self._num_touched) if host_slot not in free)

    def check_integrity(self) -> None:
        """Raises AssertionError where a slot has two sources or a host slot two states."""
        assert not self._moves.keys() & self._restores.keys()
        assert len(set(self._freed)) == len(self._freed) and not {*self._freed} & self._leaving.keys()
        assert set(self._restores.values()) <= self._leaving.keys()
        assert self._checkpoints.keys() <= set(self.held())
        assert 0 <= self._num_touched <= self.num_host_slots
