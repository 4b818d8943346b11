"""What a prefix cache has of requests that wait, by whoever knows their tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from shared.scheduling.kv.prefix_cache import PrefixCache, pair_by_kind
from shared.scheduling.request import Request


class Found(NamedTuple):
    """The beginning of a request that needs no computing if it enters now. ``num_held_blocks`` of its blocks are held
    by others, so that they cost none of those that are free."""

    num_tokens: int = 0
    num_held_blocks: int = 0


NOTHING = Found()


class RequestCache(Protocol):
    """An executor's prefix cache, as far as it is known to who plans."""

    is_by_kind: bool  # requests find nothing that one of the other kind has computed

    def found(self, request: Request) -> Found:
        """Of a request that waits."""

    def hashes(self, request: Request) -> Sequence[bytes]:
        """Of the full blocks of its tokens, as far as they are known."""


class _NoCache:
    is_by_kind = False

    def found(self, request: Request) -> Found:
        return NOTHING

    def hashes(self, request: Request) -> Sequence[bytes]:
        return ()


NO_CACHE: RequestCache = _NoCache()


class HashedRequests:
    """A prefix cache, asked by the hashes of requests' blocks."""

    def __init__(
        self,
        cache: PrefixCache,
        block_size: int,
        hashes_of: Callable[[str], Sequence[bytes]],
        is_by_kind: bool = False,
    ) -> None:
        """``hashes_of``: of the full blocks of a request's tokens, by its id; as far as they are known."""
        self._cache = cache
        self._block_size = block_size
        self._hashes_of = hashes_of
        self.is_by_kind = is_by_kind

    def found(self, request: Request) -> Found:
        """At least one token is left to compute."""
        hashes = self._hashes_of(request.request_id)
        num_usable = (request.num_tokens - 1) // self._block_size
        prefix = self._cache.look_up(hashes if len(hashes) <= num_usable else hashes[:num_usable], request.kind)
        return Found(prefix.num_blocks * self._block_size, prefix.num_held)

    def hashes(self, request: Request) -> Sequence[bytes]:
        return self._hashes_of(request.request_id)


class StepCache:
    """What requests find that enter by one step: what the cache has, and what those before them compute in it, which is
    written before it is read. So a prefix is computed once (BlendServe section 4), whoever enters together."""

    def __init__(self, cache: RequestCache, block_size: int) -> None:
        self._cache = cache
        self._block_size = block_size
        self._in_cache: dict[str, Found] = {}  # as they were looked at
        # Blocks, by who computes them in this step, by the kind that finds them.
        self._computed = pair_by_kind(dict[bytes, Request], cache.is_by_kind)
        self._found: dict[str, Found] = {}  # since that changed

    def found(self, request: Request) -> Found:
        """Of a request that waits. Online ones come first in a step, so that they find nothing of offline ones."""
        found = self._found.get(request.request_id)
        if found is None:
            found = self._found[request.request_id] = self._look_up(request)
        return found

    def compute(self, request: Request, num_computed: int, num_tokens: int) -> None:
        """The step computes so many of its tokens, after ``num_computed``."""
        for key in self._keys(request, num_computed, num_tokens):
            self._computed[request.kind].setdefault(key, request)
            self._found = {}

    def leave_out(self, request: Request, num_computed: int, num_tokens: int) -> None:
        """It does not after all."""
        computed = self._computed[request.kind]
        for key in self._keys(request, num_computed, num_tokens):
            if computed.get(key) is request:
                del computed[key]
                self._found = {}

    def _look_up(self, request: Request) -> Found:
        found = self._in_cache.get(request.request_id)
        if found is None:
            found = self._in_cache[request.request_id] = self._cache.found(request)
        kind = request.kind
        computed = self._computed[kind]
        if not computed:
            return found
        hashes = self._cache.hashes(request)
        first = last = found.num_tokens // self._block_size
        end = min(len(hashes), (request.num_tokens - 1) // self._block_size)
        while last < end and (by := computed.get(hashes[last])) is not None and by.kind <= kind:
            last += 1
        return Found(last * self._block_size, found.num_held_blocks + last - first)

    def _keys(self, request: Request, num_computed: int, num_tokens: int) -> Sequence[bytes]:
        first, last = num_computed // self._block_size, (num_computed + num_tokens) // self._block_size
        return self._cache.hashes(request)[first:last] if first < last else ()
