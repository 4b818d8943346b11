"""When copies of KV slots are done, of engines of which only the time is known."""

from collections.abc import Iterable

from shared.scheduling.kv.slot_transfers import SlotOperations


class CopyTimeline:
    """Copies run one after the other, each as soon as it is known; both directions have the bus to themselves. A step
    waits for what it restores, not for checkpoints. Moves stay on the device and take no time."""

    def __init__(self, ms_per_slot: float) -> None:
        self._ms_per_slot = ms_per_slot
        self._free_ms = 0.0  # when all that was restored is in place
        self._placed: dict[int, tuple[SlotOperations, float]] = {}  # by identity of the copies: they, and when

    def start(self, copies: SlotOperations, now_ms: float) -> None:
        """Ahead of the step that they are for; nothing where they were started."""
        if id(copies) in self._placed:
            return
        if copies.restores:
            self._free_ms = max(now_ms, self._free_ms) + len(copies.restores) * self._ms_per_slot
        self._placed[id(copies)] = copies, self._free_ms if copies.restores else now_ms

    def wait_ms(self, steps_copies: Iterable[SlotOperations], now_ms: float) -> float:
        """How long a step waits whose forward pass could begin now. Copies that were not started are."""
        placed_ms = now_ms
        for copies in steps_copies:
            self.start(copies, now_ms)
            placed_ms = max(placed_ms, self._placed.pop(id(copies))[1])
        return placed_ms - now_ms
