"""The kv-aware order against a naive one, and what it promises."""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.kv.request_cache import Found
from shared.scheduling.orders.offline.kv_aware import KvAwareOrder
from shared.scheduling.orders.offline.length_buckets import MAX_PATHS, LengthBuckets
from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.view import OfflineView
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request
from tests.shared.scheduling.factories import make_decode
from tests.shared.scheduling.orders.naive_orders import NaiveOrder, make_waiting, num_common_blocks, numbered

PROMPTS = st.lists(st.integers(0, 1), max_size=14)
READERS = ("executor-0", "executor-1")


class CacheOf:
    """Has the beginnings of these prompts, by blocks; counts who is looked up."""

    is_by_kind = False

    def __init__(self, block_size: int, prompts_of: dict[str, list[int]], cached: Sequence[list[int]]) -> None:
        self._block_size = block_size
        self._prompts_of = prompts_of
        self._cached = cached
        self.looked_up: list[str] = []

    def found(self, request: Request) -> Found:
        self.looked_up.append(request.request_id)
        prompt = self._prompts_of[request.request_id]
        shared = max((len(list(takewhile(bool, map(eq, prompt, each)))) for each in self._cached), default=0)
        return Found(shared // self._block_size * self._block_size)

    def hashes(self, request: Request) -> Sequence[bytes]:
        return ()


class NaiveKvAware:
    """All prompts of a bucket are compared, at each look."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.buckets: dict[int, NaiveOrder] = {}
        self.paths: dict[str, dict[tuple[int, ...], list[int]]] = {}
        self.last: dict[str, tuple[int, list[int]]] = {}

    def bucket(self, prompt: list[int]) -> NaiveOrder:
        return self.buckets.setdefault(len(prompt).bit_length(), NaiveOrder(self.block_size))

    def take(self, request_id: str, prompt: list[int], reader: str) -> None:
        bucket = self.bucket(prompt)
        bucket.held[request_id] = None
        others = [each for key, each in bucket.prompts.items() if key != request_id]
        num_shared = max((self.num_common(prompt, each) for each in others), default=0)
        path = tuple(prompt[: num_shared * self.block_size])
        paths = self.paths.setdefault(reader, {})
        paths.pop(path, None)
        paths[path] = prompt
        if len(paths) > MAX_PATHS:
            del paths[next(iter(paths))]
        self.last[reader] = len(prompt).bit_length(), prompt

    def num_common(self, one: list[int], other: list[int]) -> int:
        return num_common_blocks(one, other, self.block_size)

    def in_order(self, reader: str, cache: CacheOf, running: Sequence[Request]) -> list[str]:
        waiting = [bits for bits, bucket in self.buckets.items() if bucket.waiting()]
        if running:
            fitting = (sum(request.num_tokens for request in running) // len(running)).bit_length()
            waiting.sort(key=lambda bits: (abs(bits - fitting), bits))
        cached = {bits: self.cached(bits, reader, cache) for bits in waiting}
        shown = [request_id for nodes in cached.values() for node in nodes for request_id in node]
        for bits in waiting:
            bucket = self.buckets[bits]
            avoiding = [prompt for other, (its, prompt) in self.last.items() if other != reader and its == bits]
            ids = bucket.depth_first(avoiding)
            if cached[bits]:
                first = bucket.prompts[cached[bits][0][0]]
                ids.sort(key=lambda each: -self.num_common(first, bucket.prompts[each]))
            shown += ids
        return list(dict.fromkeys(shown))

    def cached(self, bits: int, reader: str, cache: CacheOf) -> list[list[str]]:
        """For each path those that share most with it, most cached tokens first."""
        bucket, nodes = self.buckets[bits], []
        for prompt in reversed(self.paths.get(reader, {}).values()):
            ids = bucket.depth_first()
            common = {each: self.num_common(prompt, bucket.prompts[each]) for each in ids}
            most = max(common.values())
            node = [each for each in ids if common[each] == most]
            if most and node not in nodes:
                nodes.append(node)
        counted = [(cache.found(make_waiting(node[0], 1)).num_tokens, node) for node in nodes]
        return [node for count, node in sorted(counted, key=lambda each: -each[0]) if count]


class KvAwareMachine(RuleBasedStateMachine):
    block_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.order, self.naive = LengthBuckets(self.block_size), NaiveKvAware(self.block_size)
        self.ids, self.prompts = numbered("batch_1"), dict[str, list[int]]()
        self.group_of: dict[str, str] = {}

    def held(self) -> list[str]:
        return [each for bucket in self.naive.buckets.values() for each in bucket.held]

    def waiting(self) -> list[str]:
        return [each for each in self.prompts if each not in self.held()]

    @rule(prompt=PROMPTS, copies=st.integers(1, 3), group=st.sampled_from("xy"))
    def add(self, prompt: list[int], copies: int, group: str) -> None:
        for _ in range(copies):
            request_id = next(self.ids)
            self.prompts[request_id], self.group_of[request_id] = prompt, group
            self.naive.bucket(prompt).add(request_id, prompt)
            self.order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt), group)

    @precondition(lambda self: self.waiting())
    @rule(index=st.integers(0, 50), reader=st.sampled_from(READERS))
    def take(self, index: int, reader: str) -> None:
        request_id = self.waiting()[index % len(self.waiting())]
        self.naive.take(request_id, self.prompts[request_id], reader)
        self.order.take(request_id, reader)

    @precondition(lambda self: self.held())
    @rule(index=st.integers(0, 50))
    def give_back(self, index: int) -> None:
        request_id = self.held()[index % len(self.held())]
        del self.naive.bucket(self.prompts[request_id]).held[request_id]
        self.order.give_back(request_id)

    @precondition(lambda self: self.prompts)
    @rule(index=st.integers(0, 50))
    def remove(self, index: int) -> None:
        request_id = list(self.prompts)[index % len(self.prompts)]
        self.naive.bucket(self.prompts.pop(request_id)).remove(request_id)
        self.order.remove(request_id)

    @rule(reader=st.sampled_from(READERS))
    def leave(self, reader: str) -> None:
        self.naive.paths.pop(reader, None)
        self.naive.last.pop(reader, None)
        self.order.leave(reader)

    @rule(reader=st.sampled_from(READERS), cached=st.lists(PROMPTS, max_size=4), lengths=st.lists(st.integers(1, 14)))
    def read(self, reader: str, cached: list[list[int]], lengths: list[int]) -> None:
        cache = CacheOf(self.naive.block_size, self.prompts, cached)
        running = [make_decode(kind=Kind.OFFLINE, context=length) for length in lengths]
        view = OfflineView(reader, cache, running_offline=running)
        shown = [request.request_id for request in self.order.in_order(view)]
        assert shown == self.naive.in_order(reader, cache, running)
        assert shown == [request.request_id for request in self.order.in_order(view)]
        for groups in ({"x": None}, {"x": None, "y": None}):
            turn = Turn(groups, set(shown[::3]))
            cache.looked_up.clear()
            part = [request.request_id for request in self.order.in_order(view, turn)]
            assert len(set(part)) == len(part) and set(part).isdisjoint(turn.passed)
            assert all(self.group_of[each] in groups and each not in turn.passed for each in (*part, *cache.looked_up))
            assert len(groups) == 1 or set(part) == set(shown) - set(shown[::3])

    @invariant()
    def counts_agree(self) -> None:
        self.order.check_integrity()
        assert self.order.num_waiting == len(self.waiting())


class PairsMachine(KvAwareMachine):
    block_size = 2


class TriplesMachine(KvAwareMachine):
    block_size = 3


TestKvAware = KvAwareMachine.TestCase
TestKvAwareByPairs = PairsMachine.TestCase
TestKvAwareByTriples = TriplesMachine.TestCase
TestKvAware.settings = TestKvAwareByPairs.settings = TestKvAwareByTriples.settings = settings(
    max_examples=16, stateful_step_count=40
)


def make_order(prompts: dict[str, list[int]]) -> LengthBuckets:
    order = LengthBuckets(4)
    for request_id, prompt in prompts.items():
        order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt))
    return order


def questions(num_documents: int, num_questions: int, num_tokens: int = 32) -> dict[str, list[int]]:
    """In turns, a document's under ``document-question``."""
    return {
        f"{document}-{question}": [document] * num_tokens + [1000 + question] * 4
        for question in range(num_questions)
        for document in range(num_documents)
    }


def test_who_shares_what_is_cached_is_next_and_the_pool_is_not_scanned() -> None:
    prompts = questions(10_000, 2)
    order, cache = make_order(prompts), CacheOf(4, prompts, [prompts["7777-0"]])
    order.take("7777-0", "executor-0")
    view = OfflineView("executor-0", cache)
    assert next(order.in_order(view)).request_id == "7777-1"
    assert len(cache.looked_up) == 1
    assert next(order.in_order(OfflineView("executor-1", cache))).request_id == "0-0"


def test_of_what_is_cached_the_longest_is_first() -> None:
    prompts = questions(3, 2)
    order = make_order(prompts)
    for document in range(3):
        order.take(f"{document}-0", "executor-0")
    cache = CacheOf(4, prompts, [prompts["0-0"][:8], prompts["1-0"][:32], prompts["2-0"][:16]])
    assert [each.request_id for each in order.in_order(OfflineView("executor-0", cache))] == ["1-1", "2-1", "0-1"]


def test_the_last_of_a_document_is_found_when_the_others_have_ended() -> None:
    prompts = questions(20, 3)
    order, cache = make_order(prompts), CacheOf(4, prompts, [prompts["5-0"]])
    for request_id in ("5-0", "5-1"):
        order.take(request_id, "executor-0")
        order.remove(request_id)
    assert next(order.in_order(OfflineView("executor-0", cache))).request_id == "5-2"


def test_the_bucket_that_fits_the_running_batch_is_first() -> None:
    prompts = {"short": [1] * 10, "long": [2] * 1000, "middle": [3] * 100}
    order = make_order(prompts)

    def shown(length: int) -> list[str]:
        running = [make_decode(context=length), make_decode(kind=Kind.OFFLINE, context=length)]
        view = OfflineView("executor-0", running_online=running[:1], running_offline=running[1:])
        return [request.request_id for request in order.in_order(view)]

    assert shown(900) == ["long", "middle", "short"]
    assert shown(90) == ["middle", "short", "long"]
    assert shown(5) == ["short", "middle", "long"]
    assert [request.request_id for request in order.in_order()] == ["short", "long", "middle"]


def test_looks_into_the_cache_are_bounded() -> None:
    prompts = questions(200, 2)
    order, cache = make_order(prompts), CacheOf(4, prompts, list(prompts.values()))
    for document in range(200):
        order.take(f"{document}-0", "executor-0")
    assert next(order.in_order(OfflineView("executor-0", cache))).request_id == "199-1"
    assert len(cache.looked_up) == MAX_PATHS


def test_what_enters_by_age_brings_its_document_with_it() -> None:
    """The first draw is by age."""
    prompts = questions(3, 3)
    order = KvAwareOrder(4, 0.5, iter([0.9, 0.1, 0.1, 0.1]))
    for request_id, prompt in prompts.items():
        order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt))
    cache, taken = CacheOf(4, prompts, []), []
    for first in ("2-0", None, None, None):
        request_id = first or next(order.in_order(OfflineView("executor-0", cache))).request_id
        order.take(request_id, "executor-0")
        taken.append(request_id)
        cache = CacheOf(4, prompts, [prompts[request_id]])
    assert taken == ["2-0", "0-0", "0-1", "0-2"]
    order.check_integrity()


def test_who_is_drawn_by_its_age_leads_its_reader_to_its_document() -> None:
    """The oldest that waits is of the second document, since the first one's oldest runs elsewhere."""
    prompts = questions(2, 2)
    order = KvAwareOrder(4, 0.5, iter([0.9, 0.9, 0.1, 0.1]))
    for request_id, prompt in prompts.items():
        order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt))
    assert next(order.in_order()).request_id == "0-0"
    order.take("0-0")
    assert next(order.in_order(OfflineView("executor-0"))).request_id == "1-0"
    order.take("1-0", "executor-0")
    view = OfflineView("executor-0", CacheOf(4, prompts, [prompts["1-0"]]))
    assert next(order.in_order(view)).request_id == "1-1"
