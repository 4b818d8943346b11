"""What a scheduler tells of readers with each plan: what is off, each once, and no more than a message should have."""

from collections import Counter
from collections.abc import Iterable

import pytest

from shared.offline_queue.prompt_demand import PromptDemand
from shared.offline_queue.told_readers import MAX_CHANGED_BLOCKS, MIN_TOLD, Path, ToldReaders
from shared.protocol.steps import ReaderCounts
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.packed_prompt import pack_tokens

LENGTH = 100  # blocks of each prompt, of a token each; ten share half of them
EMPTY: Path = (b"", ())


class Told:
    """Requests of a pool, and what an executor was told of them."""

    def __init__(self, num_requests: int = 0) -> None:
        self.demand = PromptDemand(1)
        self.cache = PrefixCacheMirror()
        self.held: set[str] = set()
        self.readers = ToldReaders(self.demand, self.cache, self.held.__contains__, lambda each: path(each)[1], 5.0)
        self.counts: dict[bytes, int] = {}
        self.true = Counter[bytes]()
        for number in range(num_requests):
            self.add(f"r{number}")

    def add(self, request_id: str, number: int = 0) -> None:
        """The ``number``-th that reads the same."""
        self.demand.add(f"{request_id}.{number}", path(request_id)[0])
        self.true.update(path(request_id)[1])

    def hear(self, *request_ids: str) -> None:
        self.held.update(request_ids)
        self.readers.hear(request_ids, lambda each: path(each)[0])

    def has_told(self, request_id: str) -> bool:
        """How many read it by now."""
        return all(self.counts.get(each) == self.true[each] for each in path(request_id)[1])

    def enter(self, *request_ids: str) -> None:
        self.tell((request_id, path(request_id)) for request_id in request_ids)

    def tell(self, entering: Iterable[tuple[str, Path]] = ()) -> ReaderCounts:
        entered = list(entering)
        told = self.readers.tell(entered)
        for (_, (_, hashes)), runs in zip(entered, told.entering, strict=True):
            start = 0
            for end, count in runs:
                self.counts |= dict.fromkeys(hashes[start:end], count)
                start = end
        for packed, count in told.changes:
            assert packed, "of nothing"
            size = len(next(iter(path("r0")[1])))
            self.counts |= dict.fromkeys([packed[at : at + size] for at in range(0, len(packed), size)], count)
        return told


def path(request_id: str) -> Path:
    number = int(request_id[1:])
    first, second = 1000 * (number // 10), 1000 * number + 500
    tokens = [*range(first, first + LENGTH // 2), *range(second, second + LENGTH // 2)]
    return pack_tokens(tokens), hash_chain(tokens, 1)


def test_words_are_numbered_since_the_first() -> None:
    """Also where the pool has nothing."""
    told = Told()
    words = [told.tell() for _ in range(3)]
    assert [(each.since_s, each.number, each.changes) for each in words] == [(5.0, number, []) for number in range(3)]


def test_what_is_held_is_told_once() -> None:
    told = Told()
    told.add("r0")
    told.add("r10")
    told.hear("r0", "r10")
    told.readers.forget(["r10"])
    told.tell()
    assert told.has_told("r0") and not told.has_told("r10")
    told.hear("r0")
    assert told.tell().changes == []


def test_all_that_is_off_is_told_in_words_of_a_bounded_length() -> None:
    """In turns, each content once; and nothing is said once nothing changes."""
    told = Told(90)
    names = [f"r{number}" for number in range(90)]
    told.held.update(names)
    told.enter(*names)
    assert all(map(told.has_told, names))
    for each in names:
        told.add(each, number=1)
    sizes = []
    while not all(map(told.has_told, names)):
        word = told.tell()
        sizes.append(sum(len(packed) for packed, _ in word.changes) // len(path("r0")[1][0]))
        assert 0 < sizes[-1] < MAX_CHANGED_BLOCKS + LENGTH
    assert sum(sizes) == len(told.true) and told.tell().changes == []


@pytest.mark.parametrize(
    ("before", "now", "is_off"),
    [
        *[(4, 4, False), (4, 5, False), (4, 3, False), (4, 6, True), (4, 2, True), (4, 0, True)],
        *[(1, 1, False), (1, 2, True), (1, 0, True), (0, 0, False), (0, 1, True)],
    ],
)
def test_a_count_is_off_by_more_than_a_quarter_or_where_it_has_become_or_was_none(
    before: int, now: int, is_off: bool
) -> None:
    told = Told()
    told.held.add("r0")
    for number in range(before):
        told.add("r0", number)
    told.enter("r0")
    for number in range(before, now):
        told.add("r0", number)
    for number in range(now, before):
        told.demand.remove(f"r0.{number}")
    told.add("r10")
    assert bool(told.tell().changes) is is_off


def test_what_is_neither_held_nor_both_cached_and_read_is_forgotten() -> None:
    told = Told()
    for request_id in ("r0", "r10", "r20"):
        told.add(request_id)
    told.held.add("r0")
    cached = [*path("r10")[1], *path("r30")[1]]
    told.cache.apply(CacheChanges(1, blocks=(BlockChanges(free=b"".join(cached)),)))
    told.enter("r0", "r10", "r20", "r30")
    told.add("r0", number=1)
    told.tell()
    assert told.has_told("r0") and len(told.readers) == 2, "of r0 and r10"


def test_few_that_are_told_of_are_remembered_whether_or_not_they_are_held() -> None:
    told = Told(2)
    told.enter("r0")
    told.hear("r1")
    told.tell()
    told.hear("r0")
    assert told.tell().changes == []


@pytest.mark.parametrize(("num_others", "is_forgotten"), [(MIN_TOLD - 2, False), (MIN_TOLD - 1, True)])
def test_of_many_that_were_told_of_those_that_are_not_held_are_forgotten(num_others: int, is_forgotten: bool) -> None:
    """Not again before there are twice as many."""
    told = Told()
    for request_id in ("r0", "r10", "r20", "r30"):
        told.add(request_id)
    others = [f"x{number}" for number in range(num_others)]
    told.tell([("r0", path("r0")), *((each, EMPTY) for each in others)])
    told.held.update(others)
    told.hear("r10")
    told.tell()
    told.hear("r0")
    assert bool(told.tell().changes) is is_forgotten
    if is_forgotten:
        told.held.remove("r0")
        told.tell([(f"y{number}", EMPTY) for number in range(9)])
        told.hear("r20", "r30")
        told.tell()
        told.hear("r0")
        assert told.tell().changes == []
