"""Bidirectional KV: blocks that an online and an offline request share, growing towards each other (BROS, section 5).

Online requests fill their blocks from the left, offline ones from the right. An online request that finds no free
block takes one that only offline requests hold, and overwrites no more of it than it needs: those slots, the latest
positions first, are checkpointed before that (lazy checkpointing). Their owner is paused: it keeps what it holds, and
runs again once it is whole, either in place, because the online request has gone, or in other blocks.

Differences from the paper. FindPreemptBlock takes the block with the most empty slots of all; here it takes that of
requests that are paused already, then room beside a running request's last page that costs it nothing, and leaves it
to the caller to pause one more. Otherwise each block would come from another request, and none could go on. Blocks of
paused requests serve offline requests too, since those could otherwise wait for each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.page import Page
from shared.scheduling.kv.pages import PageStore
from shared.scheduling.kv.pool import BlockOwners, KVPool
from shared.scheduling.kv.prefix_cache import CacheChanges, CachedPrefix
from shared.scheduling.kv.slot_transfers import SlotOperations, SlotTransfers, worthless
from shared.scheduling.request import Kind


@dataclass(slots=True)
class _Table:
    kind: Kind
    pages: list[Page] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # of the pages, as far as they are in one
    hashes: list[bytes] = field(default_factory=list)  # of the leading full pages, as far as computed
    num_computed_tokens: int = 0
    is_paused: bool = False
    is_locked: bool = False


class BidirectionalPool(KVPool):
    """Blocks that a page of each kind can share, and the host slots that back them. See ``KVPool``.

    A page in the cache is found by requests of its own kind only: the other kind reads blocks the other way. A page
    that several requests share is given up only when all of them are paused, is checkpointed once, and is whole again
    for all of them once it is for one.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_slots: int, eviction: Eviction) -> None:
        """``eviction``: a new one."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.eviction = eviction
        self._transfers = SlotTransfers(num_host_slots)
        self._store = PageStore(num_blocks, block_size, self._transfers, eviction)
        self._tables: dict[str, _Table] = {}
        self._paused: list[str] = []
        self._dropped: list[str] = []

    @property
    def num_free(self) -> int:
        """Blocks that anybody may take: held by nobody, or by paused requests alone."""
        return self._store.num_free + self._store.num_idle

    @property
    def num_offline_only(self) -> int:
        return self._store.num_alone - self._store.num_idle

    @property
    def num_host_slots_free(self) -> int:
        return self._transfers.num_host_free

    def owners(self) -> BlockOwners:
        """As it is now. A block that both kinds share counts so even where all its offline holders are paused."""
        store = self._store
        return BlockOwners(
            online=self.num_blocks - store.num_free - store.num_alone - store.num_shared,
            shared=store.num_shared,
            offline=self.num_offline_only,
            paused=store.num_idle,
            cached=store.num_cached,
            empty=store.num_free - store.num_cached,
        )

    def table(self, request_id: str) -> list[int]:
        return self._tables[request_id].blocks

    def fills_right(self, kind: Kind) -> bool:
        return kind is Kind.OFFLINE

    def num_missing_slots(self, request_id: str) -> int:
        return self._store.num_missing(request_id)

    def num_kept_blocks(self, request_id: str) -> int:
        """Blocks of a paused request that others cannot take and in which it can go on: beside an online request that
        leaves it its slots, or shared with offline requests that are not paused."""
        return self._store.num_kept(request_id)

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """Requests find what those of their own kind have computed, as far as it is whole."""
        return self._store.cache.look_up(hashes, kind)

    def take_cache_changes(self) -> CacheChanges:
        """With two entries: online, offline."""
        return self._store.cache.take_changes()

    def cache_snapshot(self) -> CacheChanges:
        """As of the changes that were taken last."""
        return self._store.cache.snapshot()

    def start(self, request_id: str, kind: Kind, num_tokens: int, hashes: Sequence[bytes]) -> int:
        """With the cached pages of its prefix, as far as they are whole."""
        if request_id in self._tables:
            raise ValueError(f"request {request_id} has blocks already")
        table = self._tables[request_id] = _Table(kind)
        for key in islice(hashes, max(0, num_tokens - 1) // self.block_size):
            page = self._store.cache.find(key, kind)
            if page is None:
                break
            assert page.block_id is not None
            table.hashes.append(key)
            self._store.hold(page, request_id)
            table.pages.append(page)
            table.blocks.append(page.block_id)
        table.num_computed_tokens = len(table.pages) * self.block_size
        return table.num_computed_tokens

    def extend(self, request_id: str, num_slots: int) -> bool:
        """Its last block has room, and nothing else lies in it."""
        table = self._tables[request_id]
        if table.is_paused or not table.pages:
            return False
        page = table.pages[-1]
        size = num_slots - page.index * self.block_size
        if size > self.block_size or self._store.peer(page) is not None:
            return False
        if size > page.used:
            self._store.grow(page, size)
        table.is_locked = True
        return True

    def grow(self, request_id: str, num_slots: int) -> bool:
        """As BROS finds blocks (section 5.1), with the differences above."""
        table = self._tables[request_id]
        was_paused = table.is_paused
        self._set_paused(request_id, table, False)
        first = 0 if was_paused else max(0, len(table.pages) - 1)  # only the last page of the others can be in trouble
        sizes = self._sizes(table, num_slots)
        homes = self._find_homes(table, first, sizes)
        if homes is None:
            self._set_paused(request_id, table, was_paused)
            return False
        for page in table.pages[first:]:
            if page.index in homes:
                self._relocate(page, homes[page.index], sizes[page.index])
            else:
                self._stay(page, sizes[page.index])
        for index in range(len(table.pages), len(sizes)):
            block_id = self._take(table.kind, sizes[index]) if homes[index] is None else homes[index]
            assert block_id is not None
            page = self._store.new_page(table.kind, index, block_id, sizes[index])
            self._store.hold(page, request_id)
            table.pages.append(page)
            table.blocks.append(block_id)
        table.is_locked = True
        return True

    def commit(self, request_id: str, num_computed_tokens: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
        table = self._tables[request_id]
        first, last = len(table.hashes), min(num_computed_tokens // self.block_size, len(hashes))
        pages, keys = table.pages[first:last], hashes[first:last]
        table.hashes += keys
        return [key for page, key in zip(pages, keys, strict=True) if self._store.cache.publish(page, key)]

    def withdraw(self, request_id: str, num_computed_tokens: int) -> Sequence[bytes]:
        table, gone = self._tables.get(request_id), list[bytes]()
        if table is None:
            return gone
        num_full = num_computed_tokens // self.block_size
        for page in table.pages[num_full : len(table.hashes)]:
            if page.hash is not None:
                gone.append(page.hash)
                self._store.cache.forget(page)
        del table.hashes[num_full:]
        return gone

    def free(self, request_id: str) -> None:
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        for page in reversed(table.pages):
            self._store.let_go(page, request_id, not table.is_paused)

    def pause(self, request_id: str) -> None:
        table = self._tables[request_id]
        assert table.kind is Kind.OFFLINE and not table.is_locked
        self._set_paused(request_id, table, True)

    def unlock(self, request_id: str, num_computed_tokens: int) -> None:
        table = self._tables.get(request_id)
        if table is None:
            return
        table.is_locked = False
        for page in table.pages[table.num_computed_tokens // self.block_size :]:
            written = num_computed_tokens - page.index * self.block_size
            page.computed = max(page.computed, min(self.block_size, written))
        table.num_computed_tokens = num_computed_tokens

    def take_operations(self) -> SlotOperations:
        return self._transfers.take()

    def peek_operations(self) -> SlotOperations:
        """What ``take_operations`` would return."""
        return self._transfers.peek()

    def take_paused(self) -> list[str]:
        paused, self._paused = self._paused, []
        return paused

    def take_dropped(self) -> list[str]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def void(self, failed: SlotOperations, later: Iterable[SlotOperations]) -> list[str]:
        slots, host_slots = worthless(failed, (*later, self._transfers.peek()))
        holders: dict[str, None] = {}
        pages = dict.fromkeys(self._pages())
        for page in dict.fromkeys((*pages, *self._store.cache)):
            on_device = page.block_id is not None and any(
                self._store.slot(page, position) in slots for position in range(page.resident)
            )
            if on_device or not host_slots.isdisjoint(page.host_slots):
                holders.update(page.holders)
                self._store.void(page)
        return list(holders)

    def _pages(self) -> Iterator[Page]:
        return (page for table in self._tables.values() for page in table.pages)

    def _sizes(self, table: _Table, num_slots: int) -> list[int]:
        """Positions of each page once ``num_slots`` tokens are covered."""
        num_pages = max(len(table.pages), -(-num_slots // self.block_size))
        sizes = [self.block_size] * num_pages
        if num_pages:
            used = table.pages[-1].used if num_pages == len(table.pages) else 0
            sizes[-1] = max(used, num_slots - (num_pages - 1) * self.block_size)
        return sizes

    def _find_homes(self, table: _Table, first: int, sizes: list[int]) -> dict[int, int | None] | None:
        """FindBlock and FindPreemptBlock of BROS: which table entries need another block, and which is to be shared
        with a request of the other kind; the others' is any that is free or idle. None where blocks are short."""
        homes: dict[int, int | None] = {
            page.index: None for page in table.pages[first:] if not self._fits(page, sizes[page.index])
        }
        homes |= dict.fromkeys(range(len(table.pages), len(sizes)))
        num_short = len(homes) - self.num_free
        if num_short == 1 and len(sizes) - 1 in homes:
            home = self._home_beside(Kind(1 - table.kind), sizes[-1])
            if home is not None:
                homes[len(sizes) - 1] = home
                return homes
        return homes if num_short <= 0 else None

    def _fits(self, page: Page, size: int) -> bool:
        """It can have ``size`` slots of its block. An online page's peer gives way, unless a step works on it."""
        peer = self._store.peer(page)
        if peer is None or peer.resident + size <= self.block_size:
            return page.block_id is not None
        return page.kind is Kind.ONLINE and not any(self._tables[holder].is_locked for holder in peer.holders)

    def _home_beside(self, kind: Kind, size: int) -> int | None:
        """The block with the most empty slots beside the last page of a running request of this kind, at least
        ``size`` of them; ties by arrival."""
        best, most = None, size - 1
        for table in self._tables.values():
            if table.kind is not kind or table.is_paused or not table.pages:
                continue
            page = table.pages[-1]
            if self._store.peer(page) is None and self.block_size - page.resident > most:
                best, most = page.block_id, self.block_size - page.resident
        return best

    def _take(self, kind: Kind, size: int) -> int:
        """A free block, else one of paused requests, emptied as far as ``size`` slots of this kind need it."""
        if self._store.num_free:
            return self._store.take_free()
        page = self._store.emptiest_idle()
        assert page is not None and page.block_id is not None
        block_id = page.block_id
        self._make_room(page, self.block_size - size if kind is Kind.ONLINE else 0)
        self._store.claim(block_id)
        return block_id

    def _relocate(self, page: Page, home: int | None, size: int) -> None:
        block_id = self._take(page.kind, size) if home is None else home
        self._store.relocate(page, block_id)
        self._store.grow(page, size)
        for holder in page.holders:
            self._tables[holder].blocks[page.index] = block_id

    def _stay(self, page: Page, size: int) -> None:
        """Whole and larger where it is; what an offline peer has there goes to the host."""
        peer = self._store.peer(page)
        if peer is not None and peer.resident + size > self.block_size:
            for holder in peer.holders:
                if not self._tables[holder].is_paused:
                    self._set_paused(holder, self._tables[holder], True)
                    self._paused.append(holder)
            self._make_room(peer, self.block_size - size)
        self._store.restore(page)
        if size > page.used:
            self._store.grow(page, size)

    def _make_room(self, page: Page, keep: int) -> None:
        """All of its holders are paused. Where the host is full they lose their KV."""
        if not self._store.evict(page, keep):
            for holder in list(page.holders):
                self._dropped.append(holder)
                self.free(holder)

    def _set_paused(self, request_id: str, table: _Table, is_paused: bool) -> None:
        if table.is_paused != is_paused:
            table.is_paused = is_paused
            for page in table.pages:
                self._store.count_active(page, -1 if is_paused else +1)

    def _is_kept(self, page: Page) -> bool:
        peer = self._store.peer(page)
        beside = peer is not None and peer.resident + min(page.used + 1, self.block_size) <= self.block_size
        return page.kind is Kind.OFFLINE and (page.num_active > 0 or beside)

    def check_integrity(self) -> None:
        """Raises AssertionError where tables, pages, blocks, host slots and counts disagree."""
        self._transfers.check_integrity()
        pages = dict.fromkeys(self._pages())
        self._store.check_integrity(list(pages))
        for page in pages:
            holders = [key for key, table in self._tables.items() if page in table.pages]
            assert holders == sorted(page.holders, key=holders.index)
            assert page.num_active == sum(1 for key in holders if not self._tables[key].is_paused)
            assert page.num_active == 0 or (page.is_whole and page.block_id is not None)
            is_full = page.used == self.block_size
            is_written = page.computed == page.used or any(self._tables[key].is_locked for key in holders)
            assert (len(holders) == 1 and page.hash is None) or (is_full and is_written)
        for request_id, table in self._tables.items():
            assert table.kind is Kind.OFFLINE or not table.is_paused
            assert not (table.is_locked and table.is_paused)
            assert [page.index for page in table.pages] == list(range(len(table.pages)))
            assert all(page.kind is table.kind and request_id in page.holders for page in table.pages)
            assert self._store.num_missing(request_id) == sum(len(page.host_slots) for page in table.pages)
            assert self._store.num_kept(request_id) == sum(1 for page in table.pages if self._is_kept(page))
            if not table.is_paused:
                assert table.blocks == [page.block_id for page in table.pages]
