"""Pages of KV, and the two sides of the blocks that they lie in: the block structure of BROS (section 5.1).

A page holds the KV of one table entry: ``block_size`` positions of a request. An online page fills its block from the
left, an offline page from the right, so that one of each may share a block and grow towards the other. Where an
online page needs slots that an offline page holds, the offline page's latest positions leave for the host; a page of
which nothing is left on the device lies in no block at all.

A page that nobody holds keeps its contents while it is findable and nobody needs its block. Such a page is whole and
alone in its block.
"""

from collections.abc import Iterable

from sortedcontainers import SortedDict

from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.free_blocks import FreeBlocks
from shared.scheduling.kv.page import Page
from shared.scheduling.kv.page_cache import PageCache
from shared.scheduling.kv.slot_transfers import SlotTransfers
from shared.scheduling.request import Kind

ONLINE_PAGE = b"online"


class PageStore:
    """All blocks of one executor, by what lies in them. It moves pages and finds room; who may have it, and what
    becomes of requests, is decided by the pool above it."""

    def __init__(self, num_blocks: int, block_size: int, transfers: SlotTransfers, eviction: Eviction) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.transfers = transfers
        self.cache = PageCache()
        self._sides: tuple[list[Page | None], list[Page | None]] = ([None] * num_blocks, [None] * num_blocks)
        self._free = FreeBlocks(num_blocks, eviction)
        self._idle: SortedDict[tuple[int, int], Page] = SortedDict()
        self.num_alone = 0  # blocks that hold nothing but an offline page, idle or not
        self.num_shared = 0  # blocks that hold a page of each kind
        self._num_kept: dict[str, int] = {}  # pages by holder, where there are any
        self._num_missing: dict[str, int] = {}  # host slots by holder, where there are any
        self._num_pages = 0

    @property
    def num_free(self) -> int:
        """Blocks in which no page is held."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that hold nothing but a page of paused offline requests."""
        return len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks in which no page is held, and one can be found."""
        return self._free.num_cached

    def peer(self, page: Page) -> Page | None:
        """The page on the other side of its block."""
        return None if page.block_id is None else self._sides[1 - page.kind][page.block_id]

    def emptiest_idle(self) -> Page | None:
        """The idle page with the most empty slots in its block (FindPreemptBlock), ties by age, youngest first."""
        return self._idle.peekitem(0)[1] if self._idle else None

    def slot(self, page: Page, position: int) -> int:
        """Where a position of a page in a block lies."""
        assert page.block_id is not None
        start = page.block_id * self.block_size
        return start + position if page.kind is Kind.ONLINE else start + self.block_size - 1 - position

    def num_kept(self, request_id: str) -> int:
        """Pages of a request that are kept, which see."""
        return self._num_kept.get(request_id, 0)

    def num_missing(self, request_id: str) -> int:
        """Slots of a request's pages that are on the host."""
        return self._num_missing.get(request_id, 0)

    def new_page(self, kind: Kind, index: int, block_id: int, used: int) -> Page:
        """A page that nobody holds yet, with slots for ``used`` positions to be written."""
        page = Page(self._num_pages, index, kind)
        self._num_pages += 1
        self._attach(page, block_id)
        page.used = page.resident = used
        self._index_block(block_id)
        return page

    def hold(self, page: Page, request_id: str) -> None:
        """One more holder, an active one."""
        if page.hash is not None:
            page.num_hits += 1
            if not page.holders:  # it was only cached
                assert page.block_id is not None
                self._free.hold(page.block_id)
        page.holders[request_id] = None
        page.num_active += 1
        _count(self._num_kept, (request_id,), page.is_kept)
        self._index(page)

    def let_go(self, page: Page, request_id: str, is_active: bool) -> None:
        """One holder less. What nobody holds stays while it can be found."""
        del page.holders[request_id]
        page.num_active -= is_active
        _count(self._num_kept, (request_id,), -page.is_kept)
        _count(self._num_missing, (request_id,), -len(page.host_slots))
        self._index(page)
        if page.holders:
            return
        if page.hash is not None and page.is_whole and self.peer(page) is None:
            assert page.block_id is not None
            self._free.cache(page.block_id, _cached_as(page.hash, page.kind), page.kind, page.num_hits)
        else:
            self._discard(page)

    def count_active(self, page: Page, change: int) -> None:
        """A holder was paused (-1), or is active again (+1)."""
        page.num_active += change
        self._index(page)

    def grow(self, page: Page, used: int) -> None:
        """In place: the slots are empty, and its holder is not paused."""
        peer = self.peer(page)
        assert page.num_active > 0 and used + (peer.resident if peer is not None else 0) <= self.block_size
        page.used = page.resident = used
        if peer is not None:
            self._index(peer)

    def evict(self, page: Page, keep: int) -> bool:
        """Leave at most the first ``keep`` positions on the device: the latest go to the host, as far as they are
        computed. False where the host is full; what has gone by then is gone."""
        self._trim(page)
        num_resident = page.resident
        is_done = self._checkpoint(page, keep)
        _count(self._num_missing, page.holders, num_resident - page.resident)
        if page.resident == 0:
            self._detach(page)
        self._index(page)
        return is_done

    def _checkpoint(self, page: Page, keep: int) -> bool:
        while page.resident > keep:
            host_slot = self.transfers.checkpoint(self.slot(page, page.resident - 1))
            if host_slot is None:
                return False
            page.host_slots.append(host_slot)
            page.resident -= 1
        return True

    def restore(self, page: Page) -> None:
        """Bring back what is on the host, in place."""
        _count(self._num_missing, page.holders, -len(page.host_slots))
        while page.host_slots:
            self.transfers.restore(page.host_slots.pop(), self.slot(page, page.resident))
            page.resident += 1
        self._index(page)

    def relocate(self, page: Page, block_id: int) -> None:
        """To a block with room for all of it, and make it whole there: no step works on it."""
        self._trim(page)
        before = [self.slot(page, position) for position in range(page.resident)]
        if page.block_id is not None:
            self._detach(page)
        self._attach(page, block_id)
        for position, source in enumerate(before):
            self.transfers.move(source, self.slot(page, position))
        self.restore(page)

    def _trim(self, page: Page) -> None:
        """Slots whose KV has not been computed hold nothing to be kept."""
        if page.is_whole:
            page.used = page.resident = min(page.used, page.computed)

    def take_free(self) -> int:
        """Take the next free block; there is one."""
        (block_id,) = self._free.take(1)
        self._clear(block_id)
        return block_id

    def claim(self, block_id: int) -> None:
        """Take this block where it is free."""
        if block_id in self._free:
            self._free.hold(block_id)
            self._clear(block_id)

    def _clear(self, block_id: int) -> None:
        """What could still be found in it is lost."""
        for kind in Kind:
            page = self._sides[kind][block_id]
            if page is not None:
                self._forget(page)
                self._sides[kind][block_id] = None

    def void(self, page: Page) -> None:
        """Its contents are not what they should be: nobody may find it from here on."""
        self.cache.forget(page)
        if not page.holders:
            self._discard(page)

    def _attach(self, page: Page, block_id: int) -> None:
        assert self._sides[page.kind][block_id] is None and block_id not in self._free
        self._sides[page.kind][block_id] = page
        page.block_id = block_id

    def _detach(self, page: Page) -> None:
        """Out of its block; the block is free where nothing else lies in it, and taken before any with a find."""
        block_id = page.block_id
        assert block_id is not None
        self._sides[page.kind][block_id] = None
        page.block_id = None
        self._index_block(block_id)
        if self._sides[1 - page.kind][block_id] is None:
            self._free.empty(block_id)

    def _discard(self, page: Page) -> None:
        self._forget(page)
        if page.block_id is not None:
            self._detach(page)

    def _forget(self, page: Page) -> None:
        """Its contents are worthless."""
        self.cache.forget(page)
        for host_slot in page.host_slots:
            self.transfers.release(host_slot)
        page.host_slots.clear()
        if self.transfers.has_arrivals:
            for position in range(page.resident):
                self.transfers.forget(self.slot(page, position))

    def _index_block(self, block_id: int) -> None:
        page = self._sides[Kind.OFFLINE][block_id]
        if page is not None:
            self._index(page)

    def _index(self, page: Page) -> None:
        """Count it, and place it among the idle ones and in the cache, by what it is now."""
        self.cache.update(page)
        if page.kind is Kind.ONLINE:
            return
        peer = self.peer(page)
        is_in_block = bool(page.holders) and page.block_id is not None
        is_alone, is_beside = is_in_block and peer is None, is_in_block and peer is not None
        is_kept = page.num_active > 0 or (  # or can go on beside its peer, by one more position where it is not full
            peer is not None and peer.resident + min(page.used + 1, self.block_size) <= self.block_size
        )
        if page.is_kept != is_kept:
            page.is_kept = is_kept
            _count(self._num_kept, page.holders, 1 if is_kept else -1)
        key = (page.resident, -page.number) if is_alone and page.num_active == 0 else None
        self.num_alone += is_alone - page.is_alone
        self.num_shared += is_beside - page.is_beside
        page.is_alone, page.is_beside = is_alone, is_beside
        if page.idle_key != key:
            if page.idle_key is not None:
                del self._idle[page.idle_key]
            if key is not None:
                self._idle[key] = page
            page.idle_key = key

    def check_integrity(self, held: list[Page]) -> None:
        """``held``: all pages that somebody holds. Raises AssertionError where blocks, counts and pages disagree."""
        cached = [page for page in self.cache if not page.holders]
        assert all(page.is_whole and page.computed == self.block_size for page in cached)
        assert all(self.peer(page) is None for page in cached)
        sides: tuple[list[Page | None], list[Page | None]] = ([None] * self.num_blocks, [None] * self.num_blocks)
        for page in (*held, *cached):
            assert page.computed <= page.used <= self.block_size
            assert page.used - page.resident == len(page.host_slots) and (
                page.resident == 0 or page.block_id is not None
            )
            if page.block_id is not None:
                assert sides[page.kind][page.block_id] is None
                sides[page.kind][page.block_id] = page
                peer = self.peer(page)
                assert page.resident + (peer.resident if peer is not None else 0) <= self.block_size
        assert sides == self._sides
        busy = {page.block_id for page in held}
        assert {*self._free} == {block_id for block_id in range(self.num_blocks) if block_id not in busy}
        alone = [p for p in held if p.kind is Kind.OFFLINE and p.block_id is not None and self.peer(p) is None]
        idle = [page for page in alone if page.num_active == 0]
        assert self.num_alone == len(alone)
        beside = [p for p in held if p.kind is Kind.OFFLINE and p.block_id is not None and self.peer(p) is not None]
        assert self.num_shared == len(beside)
        found = {page.block_id for page in cached}
        assert self._free.num_cached == len(found) and found <= {*self._free}
        assert dict(self._idle) == {(page.resident, -page.number): page for page in idle}
        host_slots = [host_slot for page in held for host_slot in page.host_slots]
        assert sorted(host_slots) == list(self.transfers.held())
        self.cache.check_integrity()
        anybodys = {page.block_id for page in (*cached, *idle)}
        assert all(page.is_held is (page.block_id not in anybodys) for page in self.cache if page.is_whole)


def _cached_as(key: bytes, kind: Kind) -> bytes:
    """What an eviction knows contents by. Offline requests do not find an online page: it is none of what they read."""
    return key if kind is Kind.OFFLINE else ONLINE_PAGE + key


def _count(counts: dict[str, int], holders: Iterable[str], change: int) -> None:
    """Counts of 0 are left out."""
    for request_id in holders if change else ():
        count = counts.pop(request_id, 0) + change
        if count:
            counts[request_id] = count
