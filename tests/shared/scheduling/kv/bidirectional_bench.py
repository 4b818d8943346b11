"""A bidirectional pool with a model of the device behind it that stores every token in its slot."""

from __future__ import annotations

from shared.scheduling.kv.bidirectional import BidirectionalPool
from shared.scheduling.kv.eviction.evictions import make_eviction
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.request import Kind
from tests.shared.scheduling.kv.cache_listeners import commit, start_as_looked_up

BLOCK = 4
Content = tuple[Kind, tuple[int, ...]]  # what a slot holds: the KV of the last of these tokens


class Device:
    """Slots of device and host, each with the content that was last written to it."""

    def __init__(self) -> None:
        self.slots: dict[int, Content] = {}
        self.host: dict[int, Content] = {}

    def execute(self, operations: SlotOperations) -> None:
        """Each source is read before anything is written; a source that was never written is an error."""
        device = [(slot, self.slots[source]) for source, slot in operations.moves]
        device += [(slot, self.host[source]) for source, slot in operations.restores]
        host = [(slot, self.slots[source]) for source, slot in operations.checkpoints]
        assert len({slot for slot, _ in device}) == len(device), "written twice"
        assert len({slot for slot, _ in host}) == len(host), "written twice"
        assert {slot for slot, _ in host}.isdisjoint(source for source, _ in operations.restores)
        self.slots.update(device)
        self.host.update(host)

    def copy(self) -> Device:
        other = Device()
        other.slots, other.host = dict(self.slots), dict(self.host)
        return other


class Bench:
    """A pool, the device behind it, and what each request has computed."""

    def __init__(self, num_blocks: int = 8, num_host_slots: int = 100, eviction: str = "lru") -> None:
        self.pool = BidirectionalPool(num_blocks, BLOCK, num_host_slots, make_eviction(eviction))
        self.num_host_slots = num_host_slots
        self.device = Device()
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.kinds: dict[str, Kind] = {}
        self.in_flight: list[str] = []
        self.paused: set[str] = set()

    def add(self, request_id: str, kind: Kind, tokens: list[int]) -> None:
        self.tokens[request_id], self.kinds[request_id] = list(tokens), kind
        self.computed[request_id] = start_as_looked_up(self.pool, request_id, kind, tokens)

    def slot(self, request_id: str, position: int) -> int:
        offset = position % BLOCK
        if self.kinds[request_id] is Kind.OFFLINE:
            offset = BLOCK - 1 - offset
        return self.pool.table(request_id)[position // BLOCK] * BLOCK + offset

    def content(self, request_id: str, position: int) -> Content:
        return self.kinds[request_id], tuple(self.tokens[request_id][: position + 1])

    def check_reads(self, request_id: str, num_tokens: int, device: Device) -> None:
        for position in range(num_tokens):
            assert device.slots.get(self.slot(request_id, position)) == self.content(request_id, position)

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """To ``num_tokens`` computed, in the step that comes; False where blocks are short."""
        grown = self.pool.grow(request_id, num_tokens)
        if grown:
            self.paused.discard(request_id)
        self.paused.update(self.pool.take_paused())
        for dropped in self.pool.take_dropped():
            self.forget(dropped)
        return grown

    def launch(self, targets: dict[str, int]) -> list[str]:
        """A step that brings requests to so many tokens each, as far as they fit; returns who runs."""
        running = [request_id for request_id, target in targets.items() if self._fits(request_id, target)]
        self.device.execute(self.pool.take_operations())
        written: set[int] = set()
        for request_id in running:
            self.check_reads(request_id, self.computed[request_id], self.device)
        for request_id in running:
            for position in range(self.computed[request_id], targets[request_id]):
                slot = self.slot(request_id, position)
                assert slot not in written, "two owners"
                written.add(slot)
                self.device.slots[slot] = self.content(request_id, position)
            self.computed[request_id] = targets[request_id]
        self.in_flight += running
        return running

    def finish(self, request_id: str) -> None:
        self.in_flight.remove(request_id)
        self.check_reads(request_id, self.computed[request_id], self.device)
        self.pool.unlock(request_id, self.computed[request_id])

    def run(self, request_id: str, num_tokens: int) -> bool:
        """One step of one request alone."""
        if not self.launch({request_id: num_tokens}):
            return False
        self.finish(request_id)
        return True

    def pause(self, request_id: str) -> None:
        self.pool.pause(request_id)
        self.paused.add(request_id)

    def give_up(self, request_id: str) -> None:
        """What was made room for does not run: an online request ends, an offline one is paused."""
        if self.kinds[request_id] is Kind.ONLINE:
            self.free(request_id)
        else:
            self.pool.unlock(request_id, self.computed[request_id])
            self.pause(request_id)

    def fail(self) -> list[str]:
        """The step that was to come could not copy; who needs what it was to write begins anew. Returns them."""
        holders = self.pool.void(self.pool.take_operations(), [])
        for request_id in holders:
            self.free(request_id)
        self.in_flight = [request_id for request_id in self.in_flight if request_id in self.tokens]
        return holders

    def check(self) -> None:
        """Whoever is not paused can read all that is its own once the copies are done."""
        self.pool.check_integrity()
        device = self.device.copy()
        device.execute(self.pool.peek_operations())
        for request_id, computed in self.computed.items():
            if request_id not in self.paused:
                self.check_reads(request_id, computed, device)

    def wind_up(self) -> None:
        """Each offline request is read once more, with all room to itself; nothing may be left in the end."""
        for request_id in list(self.in_flight):
            self.finish(request_id)
        for request_id in [key for key, kind in self.kinds.items() if kind is Kind.ONLINE]:
            self.free(request_id)
        while self.tokens:
            request_id, *others = self.tokens
            for other in others:
                self.pause(other)
            assert self.run(request_id, max(1, self.computed[request_id]))
            self.free(request_id)
        self.device.execute(self.pool.take_operations())
        self.pool.check_integrity()
        assert self.pool.num_free == self.pool.num_blocks
        assert self.pool.num_host_slots_free == self.num_host_slots

    def free(self, request_id: str) -> None:
        self.pool.free(request_id)
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        del self.tokens[request_id], self.computed[request_id], self.kinds[request_id]
        self.paused.discard(request_id)

    def _fits(self, request_id: str, target: int) -> bool:
        """False also where an earlier one of the step took its KV. What it fills can be found from here on."""
        if request_id not in self.tokens or not self.grow(request_id, target):
            return False
        commit(self.pool, request_id, self.tokens[request_id], target)
        return True


def started(bench: Bench, request_id: str, kind: Kind, num_tokens: int, first: int = 0) -> None:
    """A request of its own tokens, all computed."""
    bench.add(request_id, kind, list(range(first, first + num_tokens)))
    assert bench.run(request_id, num_tokens)
