"""Who gets KV blocks for the next step, and who gives way: a schedule made true in the pool."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from shared.protocol.executors import ExecutorCounters
from shared.replica.sequence import LiveSequence
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.prefix_cache import pair_by_kind
from shared.scheduling.kv.sharing import KVSharing
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.limits import Limits
from shared.scheduling.packing.giving_way import who_gives_way
from shared.scheduling.request import OFFLINE, ONLINE, Request
from shared.scheduling.schedule import LATEST, Schedule, ScheduledRequest
from shared.scheduling.table import RequestTable


@dataclass(frozen=True, slots=True)
class Unwritten:
    """What can be found of a step before it has written it. ``hashes``: of those blocks, by the kind of who fills them;
    ``readers``: who entered by the step on such blocks, of its own or of steps before it."""

    hashes: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    readers: list[LiveSequence] = field(default_factory=list)


class KVAllocation:
    """Keeps the table's requests and the pool in step. Online requests that give way lose their KV; offline ones too,
    or are paused, as the sharing says.

    The blocks that a step fills can be found from then on: in each layer the KV of all its tokens is written before
    any is read, and steps run one after the other. Until it is ``settled`` they are unwritten: who reads them falls
    with the step that was to write them.
    """

    def __init__(
        self, limits: Limits, table: RequestTable, pool: KVPool, sharing: KVSharing, totals: ExecutorCounters
    ) -> None:
        self._block_size = limits.block_size
        self._table = table
        self._pool = pool
        self._sharing = sharing
        self._totals = totals
        self._gives_way = LATEST  # the rule of the newest schedule
        self._num_coming = 0  # blocks of offline requests that come from another replica
        self._newest = Unwritten()  # of the step that was allocated last
        self._unwritten = self._no_hashes()  # of all steps in flight

    def num_blocks(self) -> tuple[int, int]:
        """Those that anybody may take, and those that online requests may take from offline ones."""
        self.update_paused()
        num_locked = self._table.num_blocks_in_flight(OFFLINE) + self._num_coming
        return self._pool.num_free, self._sharing.num_offline_blocks(self._pool.num_offline_only, num_locked)

    def update_paused(self) -> None:
        """Note what paused requests have now of what they need: others change that."""
        if not self._sharing.pauses:
            return
        for request in self._table.running(OFFLINE).values():
            if request.is_paused:
                request.num_kept_blocks = self._pool.num_kept_blocks(request.request_id)
                request.num_missing_slots = self._pool.num_missing_slots(request.request_id)

    def allocate(
        self, schedule: Schedule, sequences: Mapping[str, LiveSequence], planned: Mapping[str, int]
    ) -> list[tuple[LiveSequence, int]]:
        """Give each entry its blocks; what runs, with the tokens that it computes. Where the counts were too hopeful
        (shared blocks free less than they count), offline requests give way to online ones, and offline entries are
        dropped."""
        self._gives_way = schedule.gives_way
        self._newest, block_size = Unwritten(), self._block_size
        lost: dict[str, None] = {}
        for request_id in schedule.preempted:
            request = self._table.get(request_id)
            if request is not None and request.is_running and not request.is_in_flight:
                self._give_way(request, lost)
        running: list[tuple[LiveSequence, int]] = []
        extend = self._pool.extend
        for entry in schedule.entries:
            request_id, num_tokens = entry.request_id, entry.num_scheduled_tokens
            if request_id in lost:
                continue
            sequence = sequences[request_id]
            request = sequence.request
            num_computed, is_running = request.num_computed_tokens, request.num_blocks > 0
            if num_tokens > (num_remaining := request.num_tokens - num_computed):
                num_tokens = num_remaining
            if not is_running or not extend(request_id, num_computed + num_tokens):  # few decodes
                num_tokens = self._allocate(sequence, entry.num_scheduled_tokens, lost, schedule.gives_way)
                num_computed = request.num_computed_tokens
            if num_tokens == 0:
                self._totals.offline_dropped += entry.kind is OFFLINE
                continue
            if not is_running:
                self._totals.entrant_tokens_planned += planned.get(request_id, entry.num_scheduled_tokens)
                self._totals.entrant_tokens_computed += num_tokens
            request.num_in_flight_tokens = num_tokens
            if (num_computed + num_tokens) % block_size < num_tokens:
                self._publish(sequence, num_tokens)
            running.append((sequence, num_tokens))
        self._totals.offline_dropped += schedule.num_dropped
        return running

    def take_operations(self) -> SlotOperations:
        """What the step that was allocated copies before its forward pass."""
        operations = self._pool.take_operations()
        self._totals.checkpointed_slots += len(operations.checkpoints)
        self._totals.restored_slots += len(operations.restores)
        return operations

    def take_unwritten(self) -> Unwritten:
        """Of the step that was allocated; to be ``settled``."""
        newest, self._newest = self._newest, Unwritten()
        return newest

    def settle(self, unwritten: Unwritten) -> None:
        """The step has ended: they are written, or not to be found any more."""
        for hashes, settled in zip(self._unwritten, unwritten.hashes, strict=True):
            hashes.difference_update(settled)

    def wrote(self, unwritten: Unwritten) -> None:
        """They are written: who entered on them has found something."""
        self.settle(unwritten)
        for sequence in unwritten.readers:
            self._count_start(sequence)

    def withdraw(self, sequence: LiveSequence) -> Sequence[bytes]:
        """What steps in flight were to write of it is not to be found: they do not. The hashes of these blocks."""
        return self._pool.withdraw(sequence.request_id, sequence.request.num_computed_tokens)

    def withdraw_all(self, sequences: Iterable[LiveSequence], steps: Iterable[Unwritten]) -> list[LiveSequence]:
        """As ``withdraw``, each of these, and whoever reads what they were to write, or what such a reader was to, in
        these steps, the oldest first. Those readers."""
        worthless, readers = self._no_hashes(), list[LiveSequence]()
        for sequence in sequences:
            worthless[sequence.kind].update(self.withdraw(sequence))
        for step in steps:
            for sequence in step.readers:
                if self._has_found(sequence, worthless):
                    worthless[sequence.kind].update(self.withdraw(sequence))
                    readers.append(sequence)
        return readers

    def advance(self, sequence: LiveSequence, num_tokens: int) -> None:
        """KV is written for so many more of its tokens; full blocks can be found from here on."""
        request = sequence.request
        num_before = request.num_computed_tokens
        request.num_computed_tokens = num_after = num_before + num_tokens
        if num_before < sequence.num_prompt_tokens:
            self._totals.prompt_tokens += min(num_after, sequence.num_prompt_tokens) - num_before
        if self._sharing.pauses:
            self._pool.unlock(request.request_id, num_after)
        if num_after % self._block_size < num_tokens:
            self._commit(sequence, num_after)

    def lose(self, request: Request) -> None:
        """Its KV is gone, its tokens stay."""
        self.restart(request)
        self._totals.preemptions += 1

    def restart(self, request: Request) -> None:
        """It waits again, without KV but for what the prefix cache may still have of its tokens."""
        self._pool.free(request.request_id)
        self._table.preempt(request)

    def restore(self, entries: Iterable[ScheduledRequest]) -> SlotOperations:
        """Paused requests become whole, as far as there is room for it, without running; what is to be copied."""
        for entry in entries:
            request = self._table.get(entry.request_id)
            assert request is not None
            if self._grow(request, request.num_computed_tokens, {}):
                self._pool.unlock(request.request_id, request.num_computed_tokens)
                request.num_blocks = len(self._pool.table(request.request_id))
        return self.take_operations()

    def reserve(self, sequence: LiveSequence, num_tokens: int, num_reserved_blocks: int = 0) -> int | None:
        """Blocks for the KV of so many of its tokens, which come from another replica: how many of these the prefix
        cache has. None where blocks are short: an online request takes those of offline ones, another has to leave one
        for each that runs and, unless it is the first to hold any here, ``num_reserved_blocks``."""
        request = sequence.request
        num_needed, (num_free, num_offline) = -(-num_tokens // self._block_size), self.num_blocks()
        is_online = request.kind is ONLINE
        num_running = len(self._table.running(ONLINE)) + len(self._table.running(OFFLINE))
        num_left = num_running + (num_reserved_blocks if num_free < self._pool.num_blocks else 0)
        if num_needed > (num_free + num_offline if is_online else num_free - num_left):
            return None
        unwritten = self._unwritten[request.kind]
        hashes = list(takewhile(lambda key: key not in unwritten, sequence.block_hashes(self._block_size)))
        num_cached = self._pool.start(request.request_id, request.kind, request.num_tokens, hashes)
        lost: dict[str, None] = {}
        while not self._grow(request, num_tokens, lost):
            victim = self._victim_of(request, lost, self._gives_way, self._num_lacking_blocks(request, num_tokens))
            if victim is None:
                self._pool.free(request.request_id)
                return None
            self._give_way(victim, lost)
        if not is_online:
            self._num_coming += len(self._pool.table(request.request_id))
        return num_cached

    def take(self, sequence: LiveSequence, num_tokens: int) -> None:
        """What was reserved holds the KV of so many of its tokens: it runs from here on."""
        request = sequence.request
        self._came(request)
        request.num_computed_tokens = num_tokens
        request.num_blocks = len(self._pool.table(request.request_id))
        self._table.start(request)
        self._pool.unlock(request.request_id, num_tokens)
        self._pool.commit(request.request_id, num_tokens, sequence.block_hashes(self._block_size))

    def drop(self, sequence: LiveSequence) -> None:
        """What was reserved is free again."""
        self._came(sequence.request)
        self._pool.free(sequence.request_id)

    def void(self, failed: Sequence[SlotOperations], later: Iterable[SlotOperations]) -> list[Request]:
        """A step's copies failed; who holds what they, and ``later`` ones, were to write."""
        after, holders = list(later), dict[str, None]()
        for operations in reversed(failed):
            holders.update(dict.fromkeys(self._pool.void(operations, after)))
            after.insert(0, operations)
        requests = (self._table.get(request_id) for request_id in holders)
        return [request for request in requests if request is not None]

    def _came(self, request: Request) -> None:
        if request.kind is OFFLINE:
            self._num_coming -= len(self._pool.table(request.request_id))

    def _allocate(self, sequence: LiveSequence, num_tokens: int, lost: dict[str, None], gives_way: str) -> int:
        """Tokens that can be computed now: ``num_tokens``, less where the prefix cache leaves less; 0 for none.
        ``gives_way``: the rule by which offline requests do."""
        request = sequence.request
        was_running = request.is_running
        if not was_running:
            request.num_computed_tokens = self._pool.start(
                request.request_id, request.kind, request.num_tokens, sequence.block_hashes(self._block_size)
            )
        num_tokens = min(num_tokens, request.num_remaining_tokens)
        while not self._grow(request, request.num_computed_tokens + num_tokens, lost):
            num_slots = request.num_computed_tokens + num_tokens
            victim = self._victim_of(request, lost, gives_way, self._num_lacking_blocks(request, num_slots))
            if victim is None:
                self._hold(request, was_running, lost)
                return 0
            self._give_way(victim, lost)
        request.num_blocks = len(self._pool.table(request.request_id))
        if not was_running:
            self._table.start(request)
            if self._has_found(sequence, self._unwritten):
                self._newest.readers.append(sequence)
            else:
                self._count_start(sequence)
        return num_tokens

    def _publish(self, sequence: LiveSequence, num_tokens: int) -> None:
        """The step that is allocated fills blocks with so many more of its tokens."""
        found = self._commit(sequence, sequence.request.num_computed_tokens + num_tokens)
        self._newest.hashes[sequence.kind].extend(found)
        self._unwritten[sequence.kind].update(found)

    def _commit(self, sequence: LiveSequence, num_slots: int) -> Sequence[bytes]:
        """A block among the first slots has become full."""
        return self._pool.commit(sequence.request_id, num_slots, sequence.block_hashes(self._block_size))

    def _hold(self, request: Request, was_running: bool, lost: dict[str, None]) -> None:
        """Its blocks are short. An offline request that cannot go on would only keep others from its blocks."""
        if not was_running:
            self._pool.free(request.request_id)
            request.num_computed_tokens = 0
        elif self._sharing.is_paused_by_giving_way(request.kind):
            self._give_way(request, lost)

    def _grow(self, request: Request, num_slots: int, lost: dict[str, None]) -> bool:
        """In the pool; and say in the table who was paused or has lost its KV for it."""
        has_grown = self._pool.grow(request.request_id, num_slots)
        if not self._sharing.pauses:
            return has_grown
        for request_id in self._pool.take_paused():
            self._pause(request_id)
        for request_id in self._pool.take_dropped():
            dropped = self._table.get(request_id)
            assert dropped is not None
            self.lose(dropped)
            lost[request_id] = None
        if has_grown:
            request.num_kept_blocks = None
            request.num_missing_slots = 0
        return has_grown

    def _give_way(self, request: Request, lost: dict[str, None]) -> None:
        """It is not to run in the coming step, and its blocks are for others."""
        lost[request.request_id] = None
        if self._sharing.is_paused_by_giving_way(request.kind):
            self._pool.pause(request.request_id)
            self._pause(request.request_id)
        else:
            self.lose(request)

    def _pause(self, request_id: str) -> None:
        request = self._table.get(request_id)
        assert request is not None
        self._totals.pauses += not request.is_paused
        request.num_kept_blocks = 0

    def _victim_of(
        self, taker: Request, lost: dict[str, None], gives_way: str, num_needed_blocks: int
    ) -> Request | None:
        """The next offline request that can give way to it, None where there is none."""
        if taker.kind is OFFLINE or not self._sharing.gives_way:
            return None
        return who_gives_way(gives_way, self._table, lost, num_needed_blocks)

    def _num_lacking_blocks(self, request: Request, num_slots: int) -> int:
        """That have to come free for it, at least, beside those that are."""
        num_more = -(-num_slots // self._block_size) - len(self._pool.table(request.request_id))
        return max(1, num_more - self._pool.num_free)

    def _no_hashes(self) -> tuple[set[bytes], set[bytes]]:
        """Of blocks, by the kind of who finds them; membership only."""
        return pair_by_kind(set[bytes], self._sharing.is_by_kind)

    def _has_found(self, sequence: LiveSequence, hashes: Sequence[Container[bytes]]) -> bool:
        """One that has just entered stands on some of these blocks."""
        num_found, of_kind = sequence.request.num_computed_tokens // self._block_size, hashes[sequence.kind]
        return any(key in of_kind for key in sequence.block_hashes(self._block_size)[:num_found])

    def _count_start(self, sequence: LiveSequence) -> None:
        num_found = min(sequence.request.num_computed_tokens, sequence.num_prompt_tokens)
        self._totals.cached_tokens += num_found
        if not sequence.has_started:
            sequence.has_started = True
            sequence.num_cached_tokens = num_found
