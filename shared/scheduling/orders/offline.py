"""Offline orders: which waiting offline request may enter an executor next.

``fcfs`` is by arrival, ``psm`` the depth-first order of the prefix trie (HyGen Alg. 3), ``psm-fair`` takes each next
request from the trie or from the freshness tree (Alg. 4).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from shared.named import named
from shared.scheduling.orders.freshness import FreshnessTree
from shared.scheduling.orders.prefix_trie import PrefixTrie
from shared.scheduling.request import Request

BLOCK_SIZE = 16  # tokens; prompts are told apart by blocks of the size that executors' KV caches have by default


class OfflineOrder(Protocol):
    """Requests come with ``add``, run between ``take`` and ``give_back``, and go with ``remove``. One that is given
    back waits at its old place.

    Of several readers, executors by their ids, each is shown first what shares prompts with no other's last request:
    who shares a prefix stays together for as long as there is other work. A single reader, and None, are shown the
    order itself.
    """

    def add(self, request: Request, prompt: bytes) -> None:
        """It waits. ``prompt``: its packed tokens. Raises ValueError for an id that is here already."""

    def take(self, request_id: str, reader: str | None = None) -> None:
        """A waiting request runs at the reader. Raises KeyError for an unknown id."""

    def give_back(self, request_id: str) -> None:
        """A taken request waits again. Raises KeyError for an unknown id."""

    def remove(self, request_id: str) -> None:
        """Forget it, waiting or taken. Raises KeyError for an unknown id."""

    def leave(self, reader: str) -> None:
        """The reader takes no more."""

    def in_order(self, reader: str | None = None) -> Iterator[Request]:
        """What waits, next first, read lazily. Reading changes nothing: until something is added, taken, given back
        or removed, the next reading is the same. The order must not change meanwhile."""

    @property
    def num_waiting(self) -> int: ...

    def check_integrity(self) -> None:
        """Raises AssertionError where the parts disagree."""


class FcfsOrder:
    """First come, first served."""

    def __init__(self) -> None:
        self._arrivals = itertools.count()
        self._requests: dict[str, Request] = {}
        self._sequences: dict[str, int] = {}  # arrivals
        self._waiting = FreshnessTree()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, prompt: bytes) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} is here already")
        sequence = next(self._arrivals)
        self._requests[request.request_id] = request
        self._sequences[request.request_id] = sequence
        self._waiting.insert(sequence, request)

    def take(self, request_id: str, reader: str | None = None) -> None:
        self._waiting.remove(self._sequences[request_id])

    def leave(self, reader: str) -> None:
        """Readers are all alike to it."""

    def give_back(self, request_id: str) -> None:
        self._waiting.insert(self._sequences[request_id], self._requests[request_id])

    def remove(self, request_id: str) -> None:
        del self._requests[request_id]
        sequence = self._sequences.pop(request_id)
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def in_order(self, reader: str | None = None) -> Iterator[Request]:
        return self._waiting.in_order()

    def check_integrity(self) -> None:
        assert self._sequences.keys() == self._requests.keys()
        by_arrival = sorted(self._requests, key=self._sequences.__getitem__)
        waiting = [request_id for request_id in by_arrival if self._sequences[request_id] in self._waiting]
        assert [request.request_id for request in self._waiting.in_order()] == waiting


class PsmOrder:
    """Prefix sharing maximization, HyGen Alg. 3: what shares a prompt's beginning runs together."""

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        self._trie = PrefixTrie(block_size)
        self._last: dict[str, bytes] = {}  # reader to the prompt that it took last

    @property
    def num_waiting(self) -> int:
        return self._trie.num_waiting

    def add(self, request: Request, prompt: bytes) -> None:
        self._trie.insert(request, prompt)

    def take(self, request_id: str, reader: str | None = None) -> None:
        self._trie.hold(request_id)
        if reader is not None:
            self._last[reader] = self._trie.prompt(request_id)

    def leave(self, reader: str) -> None:
        self._last.pop(reader, None)

    def give_back(self, request_id: str) -> None:
        self._trie.resume(request_id)

    def remove(self, request_id: str) -> None:
        self._trie.remove(request_id)

    def in_order(self, reader: str | None = None) -> Iterator[Request]:
        others = [prompt for other, prompt in self._last.items() if other != reader] if reader is not None else []
        return self._trie.in_order(others)

    def check_integrity(self) -> None:
        self._trie.check_integrity()


class PsmFairOrder:
    """HyGen Alg. 4: each next request is the trie's with probability ``utility_ratio``, else the most stale one. A
    ratio of 1 is psm; 0 is fcfs.

    A draw (line 23) stands until the request that it chose is taken. Drawing anew for each plan would let a stale
    request that does not fit right now be passed over by smaller ones again and again.
    """

    def __init__(self, block_size: int, utility_ratio: float, numbers: Iterator[float]) -> None:
        """``numbers``: endless, uniform in [0, 1). Raises ValueError for a ratio outside [0, 1]."""
        if not 0.0 <= utility_ratio <= 1.0:
            raise ValueError(f"utility_ratio must be from 0 to 1, not {utility_ratio}")
        self._by_prefix = PsmOrder(block_size)
        self._by_age = FcfsOrder()
        self._utility_ratio = utility_ratio
        self._numbers = numbers
        self._drawn: deque[float] = deque()  # for the next requests to be taken

    @property
    def num_waiting(self) -> int:
        return self._by_age.num_waiting

    def add(self, request: Request, prompt: bytes) -> None:
        self._by_age.add(request, prompt)
        self._by_prefix.add(request, prompt)

    def take(self, request_id: str, reader: str | None = None) -> None:
        """One that was drawn by its age does not lead its reader away from the prompts that it is at."""
        was_stale = bool(self._drawn) and self._drawn.popleft() >= self._utility_ratio
        self._by_age.take(request_id)
        self._by_prefix.take(request_id, None if was_stale else reader)

    def leave(self, reader: str) -> None:
        self._by_prefix.leave(reader)

    def give_back(self, request_id: str) -> None:
        self._by_age.give_back(request_id)
        self._by_prefix.give_back(request_id)

    def remove(self, request_id: str) -> None:
        self._by_age.remove(request_id)
        self._by_prefix.remove(request_id)

    def in_order(self, reader: str | None = None) -> Iterator[Request]:
        by_prefix, by_age = self._by_prefix.in_order(reader), self._by_age.in_order()
        passed: set[str] = set()  # membership only, never iterated
        for number in self._draws():
            source = by_prefix if number < self._utility_ratio else by_age
            request = next((each for each in source if each.request_id not in passed), None)
            if request is None:
                return
            passed.add(request.request_id)
            yield request

    def _draws(self) -> Iterator[float]:
        for index in itertools.count():
            if index == len(self._drawn):
                self._drawn.append(next(self._numbers))
            yield self._drawn[index]

    def check_integrity(self) -> None:
        self._by_age.check_integrity()
        self._by_prefix.check_integrity()
        by_age = {request.request_id for request in self._by_age.in_order()}
        assert by_age == {request.request_id for request in self._by_prefix.in_order()}


class OfflineOrderKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of all offline orders."""

    utility_ratio: Annotated[
        float, Meta(ge=0, le=1, description="psm-fair: share of offline requests chosen by shared prefix, not by age")
    ] = 0.9  # u of HyGen Alg. 4, which gives none: nearly all of psm's cache hits (docs/benchmarks.md)


_MAKERS: dict[str, Callable[[OfflineOrderKnobs, int, Iterator[float]], OfflineOrder]] = {
    "fcfs": lambda knobs, block_size, numbers: FcfsOrder(),
    "psm": lambda knobs, block_size, numbers: PsmOrder(block_size),
    "psm-fair": lambda knobs, block_size, numbers: PsmFairOrder(block_size, knobs.utility_ratio, numbers),
    "none": lambda knobs, block_size, numbers: FcfsOrder(),  # who serves none still keeps them
}
OFFLINE_ORDERS = tuple(_MAKERS)


def make_offline_order(
    name: str, knobs: OfflineOrderKnobs, numbers: Iterator[float], block_size: int = BLOCK_SIZE
) -> OfflineOrder:
    """An empty order by name. ``numbers``: of ``PsmFairOrder``. Raises ValueError that lists the known names, or for
    bad knobs or a bad block size."""
    return named(_MAKERS, name, "offline order")(knobs, block_size, numbers)
