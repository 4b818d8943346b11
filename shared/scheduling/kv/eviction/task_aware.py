"""What offline requests will read is kept longest: Echo, section 4.2."""

import heapq
from collections.abc import Iterator
from typing import ClassVar, TypeAlias

from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.request import ONLINE, Kind

MIN_PLACES = 64  # below which places that do not hold any more are not worth clearing

_Place: TypeAlias = tuple[int, int, int, bytes, Kind]
"""Of a block: priority, turn in which it was let go of, block id, contents and their kind. The least goes first."""


class TaskAware(Eviction):
    """By priority: the number of offline requests, waiting and running, that will read the contents; 0.5 where none
    will and an online request has held them; else 0. Within one priority the least recently used first. What running
    requests hold, with the highest priority in the paper, is never here.

    O(log) a block, also where its readers change while it is here: a block has its place in a heap, and one that does
    not hold any more is passed over when it comes up.
    """

    needs_readers: ClassVar[bool] = True

    def __init__(self) -> None:
        self._num_readers: dict[bytes, int] = {}  # by contents, wherever they are; 0 is left out
        self._places: dict[int, _Place] = {}  # by block id
        self._block_ids: dict[bytes, int] = {}  # by contents
        self._heap: list[_Place] = []  # with some that do not hold any more
        self._turn = 0
        self._num_wanted = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._places

    def __iter__(self) -> Iterator[int]:
        return (place[2] for place in sorted(self._places.values()))

    @property
    def num_wanted(self) -> int:
        return self._num_wanted

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        self._turn += 1
        self._block_ids[key] = block_id
        num_readers = self._num_readers.get(key, 0)
        self._num_wanted += num_readers > 0
        self._put((_priority(num_readers, kind), self._turn, block_id, key, kind))

    def hold(self, block_id: int) -> None:
        key = self._places.pop(block_id)[3]
        del self._block_ids[key]
        self._num_wanted -= key in self._num_readers

    def evict(self) -> int:
        while True:
            place = heapq.heappop(self._heap)
            if self._places.get(place[2]) is place:
                self.hold(place[2])
                return place[2]

    def count_readers(self, key: bytes, num_readers: int) -> None:
        before = self._num_readers.pop(key, 0)
        if num_readers:
            self._num_readers[key] = num_readers
        block_id = self._block_ids.get(key)
        if block_id is not None and before != num_readers:
            self._num_wanted += (num_readers > 0) - (before > 0)
            _, turn, _, _, kind = self._places[block_id]
            self._put((_priority(num_readers, kind), turn, block_id, key, kind))

    def _put(self, place: _Place) -> None:
        self._places[place[2]] = place
        size = len(self._heap)
        if size >= MIN_PLACES and size >= 2 * len(self._places):
            self._heap = list(self._places.values())
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, place)


def _priority(num_readers: int, kind: Kind) -> int:
    """Twice the paper's, so that it is whole."""
    return 2 * num_readers or int(kind is ONLINE)
