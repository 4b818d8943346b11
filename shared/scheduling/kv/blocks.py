"""KV blocks: who holds which, and which computed prefixes can be shared.

A full block is known by the hash of its tokens and of everything before them. A block that nobody holds keeps its
contents until it is needed (``free_blocks`` says in which order), so a later prompt with the same prefix finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from shared.scheduling.kv.cache_log import CacheLog
from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.kv.free_blocks import FreeBlocks
from shared.scheduling.kv.pool import BlockOwners, KVPool
from shared.scheduling.kv.prefix_cache import CacheChanges, CachedPrefix, count_leading
from shared.scheduling.request import OFFLINE, ONLINE, Kind


@dataclass(slots=True)
class _Block:
    refs: list[int]  # holders by kind: [online, offline]
    kind: Kind = OFFLINE  # online once an online request has held these contents
    hash: bytes | None = None  # set while its full contents are findable
    num_hits: int = 0  # requests that have found these contents


@dataclass(slots=True)
class _Table:
    kind: Kind
    blocks: list[int]
    hashes: list[bytes]  # of the leading full blocks, as far as computed


class BlockPool(KVPool):
    """Blocks that requests of both kinds fill from the left and share whole. Nobody is paused in it. See ``KVPool``."""

    def __init__(self, num_blocks: int, block_size: int, eviction: Eviction | None = None) -> None:
        """``eviction``: a new one; lru unless given."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [_Block([0, 0]) for _ in range(num_blocks)]
        self.eviction = Lru() if eviction is None else eviction
        self._free = FreeBlocks(num_blocks, self.eviction)
        self._by_hash: dict[bytes, int] = {}
        self._tables: dict[str, _Table] = {}
        self._cache_log = CacheLog()
        self._num_free = num_blocks
        self._num_offline_only = 0
        self._num_shared = 0

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_offline_only(self) -> int:
        return self._num_offline_only

    def owners(self) -> BlockOwners:
        num_online = self.num_held_online - self._num_shared
        num_cached = self._free.num_cached
        num_empty = self._num_free - num_cached
        return BlockOwners(num_online, self._num_shared, self._num_offline_only, 0, num_cached, num_empty)

    @property
    def num_held_online(self) -> int:
        return self.num_blocks - self._num_free - self._num_offline_only

    def table(self, request_id: str) -> list[int]:
        return self._tables[request_id].blocks

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """Requests of either kind find the same."""
        return count_leading(self._find, hashes)

    def take_cache_changes(self) -> CacheChanges:
        """With one entry, for both kinds."""
        return self._cache_log.take()

    def cache_snapshot(self) -> CacheChanges:
        """As of the changes that were taken last."""
        return self._cache_log.snapshot([{key: self._find(key) for key in self._by_hash}])

    def start(self, request_id: str, kind: Kind, num_tokens: int, hashes: Sequence[bytes]) -> int:
        if request_id in self._tables:
            raise ValueError(f"request {request_id} has blocks already")
        table = self._tables[request_id] = _Table(kind, [], [])
        for key in islice(hashes, max(0, num_tokens - 1) // self.block_size):
            block_id = self._by_hash.get(key)
            if block_id is None:
                break
            table.hashes.append(key)
            table.blocks.append(block_id)
            self._hold(block_id, kind)
            self._blocks[block_id].num_hits += 1
        return len(table.blocks) * self.block_size

    def extend(self, request_id: str, num_slots: int) -> bool:
        """Its blocks have room."""
        return num_slots <= len(self._tables[request_id].blocks) * self.block_size

    def grow(self, request_id: str, num_slots: int) -> bool:
        """Take free blocks for what its own do not cover."""
        table = self._tables[request_id]
        missing = -(-num_slots // self.block_size) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self._num_free:
            return False
        table.blocks += self._take(table.kind, missing)
        if table.kind is OFFLINE:
            self._num_offline_only += missing
        return True

    def unlock(self, request_id: str, num_computed_tokens: int) -> None:
        """Nothing: nobody is paused, so nobody is kept from it."""

    def commit(self, request_id: str, num_computed_tokens: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
        table = self._tables[request_id]
        num_full = min(num_computed_tokens // self.block_size, len(hashes))
        num_before = len(table.hashes)
        if num_full <= num_before:
            return ()
        by_hash, blocks, found = self._by_hash, self._blocks, list[bytes]()
        keys = hashes[num_before:num_full]
        table.hashes += keys
        for key, block_id in zip(keys, table.blocks[num_before:num_full], strict=True):
            block = blocks[block_id]
            if key not in by_hash and block.hash is None:
                block.hash = key
                by_hash[key] = block_id
                found.append(key)
        self._cache_log.note(found, None, True)
        return found

    def withdraw(self, request_id: str, num_computed_tokens: int) -> Sequence[bytes]:
        table, gone = self._tables.get(request_id), list[bytes]()
        if table is None:
            return gone
        num_full = num_computed_tokens // self.block_size
        for key, block_id in zip(table.hashes[num_full:], table.blocks[num_full:], strict=False):
            block = self._blocks[block_id]
            if block.hash is not None:
                block.hash = None
                del self._by_hash[key]
                gone.append(key)
        self._cache_log.note(gone, True, None)
        del table.hashes[num_full:]
        return gone

    def free(self, request_id: str) -> None:
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        blocks, kind, other_kind = self._blocks, table.kind, 1 - table.kind
        empty, cache = self._free.empty, self._free.cache
        num_freed, cached = 0, list[bytes]()
        for block_id in reversed(table.blocks):
            block = blocks[block_id]
            refs, key = block.refs, block.hash
            if refs[kind] > 1 or refs[other_kind]:
                self._count(refs, -1)
                refs[kind] -= 1
                self._count(refs, +1)
                continue
            refs[kind] = 0
            num_freed += 1
            if key is None:
                empty(block_id)
            else:
                cache(block_id, key, block.kind, block.num_hits)
                cached.append(key)
        self._cache_log.note(cached, True, False)
        self._num_free += num_freed
        if kind is OFFLINE:
            self._num_offline_only -= num_freed

    def pause(self, request_id: str) -> None:
        """Nothing: requests that give way lose their blocks."""

    def _take(self, kind: Kind, count: int) -> list[int]:
        """So many free blocks; what could still be found in them is lost."""
        blocks, by_hash, gone = self._blocks, self._by_hash, list[bytes]()
        taken = self._free.take(count)
        for block_id in taken:
            block = blocks[block_id]
            key = block.hash
            if key is not None:
                del by_hash[key]
                gone.append(key)
                block.hash = None
            block.kind = kind
            block.num_hits = 0
            block.refs[kind] = 1
        self._cache_log.note(gone, False, None)
        self._num_free -= count
        return taken

    def _hold(self, block_id: int, kind: Kind) -> None:
        block = self._blocks[block_id]
        refs = block.refs
        if not any(refs):
            assert block.hash is not None
            self._free.hold(block_id)
            self._num_free -= 1
            self._cache_log.note((block.hash,), False, True)
        if kind is ONLINE:
            block.kind = kind
        self._count(refs, -1)
        refs[kind] += 1
        self._count(refs, +1)

    def _find(self, key: bytes) -> bool | None:
        """Whether the block is held, None where there is none."""
        block_id = self._by_hash.get(key)
        if block_id is None:
            return None
        return any(self._blocks[block_id].refs)

    def _count(self, refs: list[int], sign: int) -> None:
        num_online, num_offline = refs
        if num_offline == 0:
            return
        if num_online == 0:
            self._num_offline_only += sign
        else:
            self._num_shared += sign

    def check_integrity(self) -> None:
        """Raises AssertionError where counts, tables and the free list disagree."""
        refs = [[0, 0] for _ in range(self.num_blocks)]
        for table in self._tables.values():
            assert len(set(table.blocks)) == len(table.blocks)
            assert len(table.hashes) <= len(table.blocks)
            for block_id in table.blocks:
                refs[block_id][table.kind] += 1
        assert refs == [block.refs for block in self._blocks]
        assert set(self._free) == {i for i, held in enumerate(refs) if held == [0, 0]}
        assert self._by_hash == {b.hash: i for i, b in enumerate(self._blocks) if b.hash is not None}
        assert self._num_free == len(self._free)
        assert self._num_offline_only == sum(1 for online, offline in refs if offline and not online)
        assert self._num_shared == sum(1 for online, offline in refs if offline and online)
        assert self._free.num_cached == sum(1 for block_id in self._free if self._blocks[block_id].hash is not None)
