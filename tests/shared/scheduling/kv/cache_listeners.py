"""Those who know a pool's prefix cache from what it tells."""

from collections.abc import Sequence

from shared.protocol.codec import decode, encode
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.prefix_cache import CacheChanges, CachedPrefix, PrefixCacheMirror
from shared.scheduling.request import Kind


def start(pool: KVPool, request_id: str, kind: Kind, tokens: Sequence[int]) -> int:
    """Start a request whose tokens have been hashed; returns its cached tokens."""
    return pool.start(request_id, kind, len(tokens), hash_chain(tokens, pool.block_size))


def commit(pool: KVPool, request_id: str, tokens: Sequence[int], num_computed: int) -> None:
    """What it has computed of its tokens can be found."""
    pool.commit(request_id, num_computed, hash_chain(tokens, pool.block_size))


def start_as_looked_up(pool: KVPool, request_id: str, kind: Kind, tokens: Sequence[int]) -> int:
    """Start a request: it gets what is looked up, and pays for what nobody held. Returns its cached tokens."""
    hashes = hash_chain(tokens, pool.block_size, (len(tokens) - 1) // pool.block_size)
    expected, num_free = pool.look_up(hashes, kind), pool.num_free
    num_cached = start(pool, request_id, kind, tokens)
    assert num_cached == expected.num_blocks * pool.block_size
    assert num_free - pool.num_free == expected.num_blocks - expected.num_held
    return num_cached


class CacheListeners:
    """One hears every message, one loses some. What they look up is what the pool does."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.attentive = PrefixCacheMirror()
        self.forgetful = PrefixCacheMirror()
        self.last = CacheChanges()
        self.has_lost = False

    def tell(self, tokens: list[int], is_lost: bool) -> None:
        """The pool tells its changes; ``tokens``: of a prompt that is looked up then."""
        self.last = self._sent(self.pool.take_cache_changes())
        assert self.attentive.apply(self.last)
        if is_lost:
            self.has_lost |= self.attentive.version != self.forgetful.version
        else:
            assert self.forgetful.apply(self.last) is not self.has_lost
            assert self.forgetful.is_stale is self.has_lost
        self._check(tokens)

    def join(self, tokens: list[int]) -> None:
        """The forgetful one asks for everything, at any time, and then hears the last message late."""
        everything = self._sent(self.pool.cache_snapshot())
        assert not any(blocks.gone for blocks in everything.blocks), "it is what is found"
        assert self.forgetful.apply(everything)
        assert self.forgetful.version == self.attentive.version and len(self.forgetful) == len(self.attentive)
        self.has_lost = False
        assert self.forgetful.apply(self.last)
        self.tell(tokens, is_lost=False)

    def _check(self, tokens: list[int]) -> None:
        hashes = hash_chain(tokens, self.pool.block_size)
        for kind in Kind:
            found = self.pool.look_up(hashes, kind)
            assert self.attentive.look_up(hashes, kind) == found
            if not self.has_lost:
                assert self.forgetful.look_up(hashes, kind) == found
            elif self.forgetful.is_stale:
                assert self.forgetful.look_up(hashes, kind) == CachedPrefix(0, 0)

    def _sent(self, changes: CacheChanges) -> CacheChanges:
        return decode(encode(changes), CacheChanges)
