"""What a prefix cache has of requests that wait, by whoever knows their tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from shared.scheduling.kv.prefix_cache import PrefixCache
from shared.scheduling.request import Request


class Found(NamedTuple):
    """The beginning of a request that needs no computing if it enters now. ``num_held_blocks`` of its blocks are held
    by others, so that they cost none of those that are free."""

    num_tokens: int = 0
    num_held_blocks: int = 0


NOTHING = Found()


class RequestCache(Protocol):
    """An executor's prefix cache, as far as it is known to who plans."""

    def found(self, request: Request) -> Found:
        """Of a request that waits."""


class _NoCache:
    def found(self, request: Request) -> Found:
        return NOTHING


NO_CACHE: RequestCache = _NoCache()


class HashedRequests:
    """A prefix cache, asked by the hashes of requests' blocks."""

    def __init__(self, cache: PrefixCache, block_size: int, hashes_of: Callable[[str], Sequence[bytes]]) -> None:
        """``hashes_of``: of the full blocks of a request's tokens, by its id; as far as they are known."""
        self._cache = cache
        self._block_size = block_size
        self._hashes_of = hashes_of

    def found(self, request: Request) -> Found:
        """At least one token is left to compute."""
        hashes = self._hashes_of(request.request_id)
        num_usable = (request.num_tokens - 1) // self._block_size
        prefix = self._cache.look_up(hashes if len(hashes) <= num_usable else hashes[:num_usable], request.kind)
        return Found(prefix.num_blocks * self._block_size, prefix.num_held)
