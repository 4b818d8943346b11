"""Prompts in buckets by their length, each a radix tree: the offline pool of Echo (section 6).

The pool is never scanned. Of an executor's cache only such branches are looked for as it took requests from lately:
whatever else it may hold has been longer unused, and is found again once somebody of it is taken.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from shared.scheduling.orders.offline.order import LearnsNothing, Turn
from shared.scheduling.orders.offline.prefix_node import Node
from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request

MAX_PATHS = 16  # of an executor: so many looks into its cache for each reading


class LengthBuckets(LearnsNothing):
    """As an ``OfflineOrder``: first what shares the prefixes that the reader's cache holds, most cached tokens first,
    those of the fitting bucket before those of others; then the neighbours of the first of these, each bucket depth
    first, the nearest to the fitting one first. Beyond the paper, a cached prefix of another bucket comes before what
    is not cached of the fitting one, since it might be gone later.

    A bucket has prompts from one power of two of tokens to the next. The fitting one has the mean length of what runs.

    As in psm, a request may wait for ever where enough others share cached prompts.
    """

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.num_waiting = 0
        self._block_size = block_size
        self._buckets: dict[int, PrefixTrie] = {}  # by the bits of a length
        self._bucket_of: dict[str, int] = {}  # by request id
        self._paths: dict[str, OrderedDict[bytes, bytes]] = {}  # of readers: shared path to prompt, the latest last
        self._last: dict[str, tuple[int, bytes]] = {}  # reader to the bucket and prompt that it took last

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        if request.request_id in self._bucket_of:
            raise ValueError(f"request {request.request_id} is here already")
        bits = request.num_tokens.bit_length()
        bucket = self._buckets.get(bits)
        if bucket is None:
            bucket = self._buckets[bits] = PrefixTrie(self._block_size)
        bucket.add(request, prompt, group)
        self._bucket_of[request.request_id] = bits
        self.num_waiting += 1

    def take(self, request_id: str, reader: str | None = None) -> None:
        bits = self._bucket_of[request_id]
        bucket = self._buckets[bits]
        prompt = bucket.hold(request_id)
        self.num_waiting -= 1
        if reader is not None:
            self._last[reader] = bits, prompt
            self._remember(reader, bucket.shared_path(request_id), prompt)

    def give_back(self, request_id: str) -> None:
        self._buckets[self._bucket_of[request_id]].give_back(request_id)
        self.num_waiting += 1

    def remove(self, request_id: str) -> None:
        bucket = self._buckets[self._bucket_of.pop(request_id)]
        self.num_waiting -= bucket.num_waiting
        bucket.remove(request_id)
        self.num_waiting += bucket.num_waiting

    def leave(self, reader: str) -> None:
        self._paths.pop(reader, None)
        self._last.pop(reader, None)

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        shown: set[str] = set()  # membership only, never iterated
        cached = self._cached(view, turn)
        for request in chain(self._of_cached(cached, turn), self._rest(cached, view, turn)):
            if request.request_id not in shown:
                shown.add(request.request_id)
                yield request

    def _of_cached(self, cached: list["_Cached"], turn: Turn | None) -> Iterator[Request]:
        for each in cached:
            yield from self._buckets[each.bits].below(each.node, turn)

    def _rest(self, cached: list["_Cached"], view: OfflineView, turn: Turn | None) -> Iterator[Request]:
        """Whoever was shown before comes again."""
        start = {each.bits: each.node for each in reversed(cached)}  # of each bucket the first
        others = [last for reader, last in self._last.items() if reader != view.reader] if view.reader else []
        for bits in self._by_nearness(view):
            avoiding = [prompt for bucket, prompt in others if bucket == bits]
            yield from self._buckets[bits].outward(start.get(bits), avoiding, turn)

    def _cached(self, view: OfflineView, turn: Turn | None) -> list["_Cached"]:
        """Branches near what the reader took lately, that its cache has, with somebody below whose turn it is."""
        if view.reader is None or view.reader not in self._paths:
            return []
        found: list[_Cached] = []
        prompts = list(reversed(self._paths[view.reader].values()))
        for bits in self._by_nearness(view):
            bucket = self._buckets[bits]
            nodes = dict.fromkeys(bucket.deepest_waiting(prompt, turn) for prompt in prompts)
            looked_up = ((self._num_cached(bucket, each, view, turn), each) for each in nodes if each is not None)
            counted = sorted((each for each in looked_up if each[0]), key=itemgetter(0), reverse=True)
            found += [_Cached(bits, node) for _, node in counted]
        return found

    def _num_cached(self, bucket: PrefixTrie, node: Node, view: OfflineView, turn: Turn | None) -> int:
        """Tokens of the first request below."""
        first = next(bucket.below(node, turn), None)
        return 0 if first is None else view.cache.found(first).num_tokens

    def _by_nearness(self, view: OfflineView) -> list[int]:
        """Buckets, the fitting one first, then its neighbours, ties to the shorter; in the order in which they were
        first filled where nothing runs."""
        running = [*view.running_online, *view.running_offline]
        waiting = [bits for bits, bucket in self._buckets.items() if bucket.num_waiting]
        if not running or len(waiting) < 2:
            return waiting
        fitting = (sum(request.num_tokens for request in running) // len(running)).bit_length()
        return sorted(waiting, key=lambda bits: (abs(bits - fitting), bits))

    def _remember(self, reader: str, path: bytes, prompt: bytes) -> None:
        """One prompt for each path that is shared with others; the longest unused is forgotten."""
        paths = self._paths.setdefault(reader, OrderedDict())
        paths[path] = prompt
        paths.move_to_end(path)
        if len(paths) > MAX_PATHS:
            paths.popitem(last=False)

    def check_integrity(self) -> None:
        for bucket in self._buckets.values():
            bucket.check_integrity()
        assert self.num_waiting == sum(bucket.num_waiting for bucket in self._buckets.values())
        assert self.num_waiting <= len(self._bucket_of)
        assert all(len(paths) <= MAX_PATHS for paths in self._paths.values())


class _Cached(NamedTuple):
    bits: int
    node: Node
