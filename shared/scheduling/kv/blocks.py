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
from shared.scheduling.request import Kind


@dataclass(slots=True)
class _Block:
    refs: list[int]  # holders by kind: [online, offline]
    kind: Kind = Kind.OFFLINE  # online once an online request has held these contents
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
        self._num_offline_only = 0
        self._num_shared = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_offline_only(self) -> int:
        return self._num_offline_only

    def owners(self) -> BlockOwners:
        num_online = self.num_blocks - len(self._free) - self._num_offline_only - self._num_shared
        num_cached = self._free.num_cached
        num_empty = len(self._free) - num_cached
        return BlockOwners(num_online, self._num_shared, self._num_offline_only, 0, num_cached, num_empty)

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
        if missing > len(self._free):
            return False
        table.blocks += [self._take(table.kind) for _ in range(missing)]
        if table.kind is Kind.OFFLINE:
            self._num_offline_only += missing
        return True

    def unlock(self, request_id: str, num_computed_tokens: int) -> None:
        """Nothing: nobody is paused, so nobody is kept from it."""

    def commit(self, request_id: str, num_computed_tokens: int, hashes: Sequence[bytes]) -> None:
        table = self._tables[request_id]
        num_full = num_computed_tokens // self.block_size
        if num_full == len(table.hashes):
            return
        for index in range(len(table.hashes), num_full):
            key = hashes[index]
            table.hashes.append(key)
            block = self._blocks[table.blocks[index]]
            if key not in self._by_hash and block.hash is None:
                block.hash = key
                self._by_hash[key] = table.blocks[index]
                self._cache_log.note(key, None, True)

    def withdraw(self, request_id: str, num_computed_tokens: int) -> None:
        table = self._tables.get(request_id)
        if table is None:
            return
        num_full = num_computed_tokens // self.block_size
        for key, block_id in zip(table.hashes[num_full:], table.blocks[num_full:], strict=False):
            block = self._blocks[block_id]
            if block.hash is not None:
                block.hash = None
                del self._by_hash[key]
                self._cache_log.note(key, True, None)
        del table.hashes[num_full:]

    def free(self, request_id: str) -> None:
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        for block_id in reversed(table.blocks):
            self._release(block_id, table.kind)

    def pause(self, request_id: str) -> None:
        """Nothing: requests that give way lose their blocks."""

    def _take(self, kind: Kind) -> int:
        """A free block; what could still be found in it is lost."""
        block_id = self._free.take()
        block = self._blocks[block_id]
        if block.hash is not None:
            del self._by_hash[block.hash]
            self._cache_log.note(block.hash, False, None)
            block.hash = None
        block.kind = kind
        block.num_hits = 0
        block.refs[kind] = 1
        return block_id

    def _hold(self, block_id: int, kind: Kind) -> None:
        block = self._blocks[block_id]
        refs = block.refs
        if refs == [0, 0]:
            assert block.hash is not None
            self._free.hold(block_id)
            self._cache_log.note(block.hash, False, True)
        if kind is Kind.ONLINE:
            block.kind = kind
        self._count(refs, -1)
        refs[kind] += 1
        self._count(refs, +1)

    def _release(self, block_id: int, kind: Kind) -> None:
        block = self._blocks[block_id]
        self._count(block.refs, -1)
        block.refs[kind] -= 1
        self._count(block.refs, +1)
        if block.refs != [0, 0]:
            return
        if block.hash is None:
            self._free.empty(block_id)
        else:
            self._free.cache(block_id, block.hash, block.kind, block.num_hits)
            self._cache_log.note(block.hash, True, False)

    def _find(self, key: bytes) -> bool | None:
        """Whether the block is held, None where there is none."""
        block_id = self._by_hash.get(key)
        return None if block_id is None else self._blocks[block_id].refs != [0, 0]

    def _count(self, refs: list[int], sign: int) -> None:
        if refs[Kind.OFFLINE] == 0:
            return
        if refs[Kind.ONLINE] == 0:
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
        assert self._num_offline_only == sum(1 for online, offline in refs if offline and not online)
        assert self._num_shared == sum(1 for online, offline in refs if offline and online)
        assert self._free.num_cached == sum(1 for block_id in self._free if self._blocks[block_id].hash is not None)
