"""The pool of offline requests against a dict of who holds which."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from shared.offline_queue.offline_pool import SUSPECT_FAILURES, OfflinePool
from shared.protocol.offline.requests import OfflineLength, OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.block_hash import KVScope
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.packed_prompt import marked, pack_tokens
from shared.scheduling.request import Kind, Request
from tests.shared.offline_queue.test_scheduler import make_offline, make_pool

EXECUTORS = ("a", "b")
KNOWN = [str(number) for number in range(8)]
AWAITED = "awaited"
IDS = [*KNOWN, AWAITED, "stranger"]
executors, some_ids = st.sampled_from(EXECUTORS), st.lists(st.sampled_from(IDS), unique=True)
requests = st.builds(
    lambda request_id, prompt, output, adapter, ignore_eos: GenerateRequest(
        request_id,
        Kind.OFFLINE,
        prompt,
        SamplingParams(7, adapter=adapter, ignore_eos=ignore_eos),
        3.0,
        output_token_ids=output,
    ),
    st.sampled_from(KNOWN),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from(["", "sql"]),
    st.booleans(),
)


class Noting(FcfsOrder):
    """Notes what it is told of executors and of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[str] = []
        self.learnt: list[tuple[str, int]] = []

    def leave(self, reader: str) -> None:
        self.left.append(reader)

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        self.learnt.append((request_id, num_output_tokens))


class PoolMachine(RuleBasedStateMachine):
    """All that may be said of requests, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.order = Noting()
        self.num_words = 0  # that there is work
        self.told: dict[str, list[str]] = {}  # to discard, by executor
        self.pool = OfflinePool(FairShare(self.order), self.note_work, self.note_discard, lambda each: each == AWAITED)
        self.requests: dict[str, GenerateRequest] = {}  # in the order in which they came
        self.holders: dict[str, str] = {}
        self.ending: set[str] = set()
        self.failed: set[str] = set()
        self.num_failures = Counter[str]()
        self.num_expected = 0
        self.left: list[str] = []
        self.learnt: list[tuple[str, int]] = []

    def note_work(self) -> None:
        self.num_words += 1

    def note_discard(self, executor_id: str, request_ids: list[str]) -> None:
        assert executor_id not in self.told, "told once"
        self.told[executor_id] = request_ids

    def wait_again(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.holders[request_id]
            self.ending.discard(request_id)
            self.failed.discard(request_id)
        self.num_expected += bool(request_ids)

    @initialize(there=st.lists(requests, min_size=4), takers=st.lists(executors, min_size=4))
    def begin(self, there: list[GenerateRequest], takers: list[str]) -> None:
        """Some are there, and most of them run."""
        for made in there:
            self.enter(made, is_of_batch=False)
        for request_id, executor_id in zip(list(self.requests), takers, strict=False):
            self.pool.take(request_id, executor_id)
            self.holders[request_id] = executor_id

    @rule(made=requests, is_of_batch=st.booleans())
    def enter(self, made: GenerateRequest, is_of_batch: bool) -> None:
        if is_of_batch:
            self.pool.add([OfflineRequest(made, "batch", 1, "custom", "m")])
        else:
            self.pool.enter(made)
        self.requests.setdefault(made.request_id, made)
        self.num_expected += 1

    @rule(data=st.data(), executor_id=executors)
    def take(self, data: st.DataObject, executor_id: str) -> None:
        if waiting := [each for each in self.requests if each not in self.holders]:
            request_id = data.draw(st.sampled_from(waiting))
            assert self.pool.take(request_id, executor_id) == self.requests[request_id]
            self.holders[request_id] = executor_id

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """An executor says that one of those that it holds has ended well."""
        if self.holders:
            request_id = data.draw(st.sampled_from(sorted(self.holders)))
            there = [each for each, holder in self.holders.items() if holder == self.holders[request_id]]
            self.settle(self.holders[request_id], there, [request_id], [])

    @rule(data=st.data(), giver=executors, taker=executors)
    def move(self, data: st.DataObject, giver: str, taker: str) -> None:
        """Of one that is held, often from its holder."""
        request_id = data.draw(st.sampled_from([*sorted(self.holders), *IDS]))
        giver = data.draw(st.sampled_from([giver, self.holders.get(request_id, giver)]))
        moved = self.pool.move(request_id, giver, taker)
        if request_id not in self.requests:
            assert moved is (request_id == AWAITED)
            return
        holder = self.holders.get(request_id)
        if holder is None or (holder == giver and request_id not in self.ending):
            self.holders[request_id] = taker
        assert moved is (self.holders[request_id] == taker and request_id not in self.ending)

    @rule(executor_id=executors, held=some_ids, ended=some_ids, with_error=some_ids)
    def settle(self, executor_id: str, held: list[str], ended: list[str], with_error: list[str]) -> None:
        unwanted = []
        for request_id in held:
            if request_id in self.requests and request_id not in self.holders:
                self.holders[request_id] = executor_id
            elif self.holders.get(request_id) != executor_id and request_id != AWAITED:
                unwanted.append(request_id)
        for request_id in ended:
            if self.holders.get(request_id) == executor_id:
                self.ending.add(request_id)
                if request_id in self.failed and request_id in with_error:
                    self.ending.remove(request_id)
        gone = [each for each, holder in self.holders.items() if holder == executor_id and each not in held]
        self.wait_again([each for each in gone if each not in self.ending])
        assert self.pool.settle(executor_id, held, ended, with_error) == unwanted

    @rule(executor_id=st.sampled_from([*EXECUTORS, "unknown"]))
    def release(self, executor_id: str) -> None:
        there = [each for each, holder in self.holders.items() if holder == executor_id]
        unfinished = {each for each in there if each not in self.ending}
        self.wait_again(there)
        assert set(self.pool.release(executor_id)) == unfinished
        self.left.append(executor_id)

    @rule(request_id=st.sampled_from(IDS), num_failures=st.integers(1, SUSPECT_FAILURES + 1))
    def retry(self, request_id: str, num_failures: int) -> None:
        self.pool.retry(request_id, num_failures)
        if request_id in self.requests:
            self.num_failures[request_id] = num_failures
            if request_id in self.ending:
                self.wait_again([request_id])
            elif request_id in self.holders:
                self.failed.add(request_id)

    @rule(request_ids=some_ids)
    def discard(self, request_ids: list[str]) -> None:
        expected: dict[str, list[str]] = {}
        for request_id in request_ids:
            if self.requests.pop(request_id, None) is not None:
                if (holder := self.holders.pop(request_id, None)) is not None:
                    expected.setdefault(holder, []).append(request_id)
                del self.num_failures[request_id]
                self.ending.discard(request_id)
                self.failed.discard(request_id)
        self.pool.discard(request_ids)
        assert self.told == expected
        self.told = {}

    @rule(request_id=st.sampled_from(IDS), num_tokens=st.integers(1, 9))
    def learn(self, request_id: str, num_tokens: int) -> None:
        self.pool.learn(request_id, num_tokens)
        if request_id in self.requests:
            self.learnt.append((request_id, num_tokens))

    @rule(block_size=st.integers(1, 2))
    def demand(self, block_size: int) -> None:
        """Kept up from the first time on that it is asked for."""
        demand = self.pool.demand(block_size)
        demand.catch_up(len(self.requests))
        for request_id, request in self.requests.items():
            num_readers = 0
            for other in self.requests.values():
                first = [each.prompt_token_ids[:block_size] for each in (request, other)]
                alike = first[0] == first[1] and request.sampling.adapter == other.sampling.adapter
                num_readers += alike and len(first[0]) == block_size
            prompt = self.pool.prompt(request_id)
            assert prompt is not None
            assert demand.runs(prompt, 0, 1 if num_readers else 0) == ([(1, num_readers)] if num_readers else [])

    @rule(num_wanted=st.integers(1, 9))
    def sample(self, num_wanted: int) -> None:
        spread = islice(self.requests.values(), 0, None, max(1, len(self.requests) // num_wanted))
        expected = [OfflineLength(len(each.prompt_token_ids), 7) for each in islice(spread, num_wanted)]
        assert self.pool.sample(num_wanted) == expected

    @invariant()
    def waits_what_nobody_holds(self) -> None:
        waiting = [each for request_id, each in self.requests.items() if request_id not in self.holders]
        assert {request.request_id: request for request in self.pool.in_order()} == {
            each.request_id: scheduled(each) for each in waiting
        }
        assert [request.request_id for request in self.pool.in_order()] == [each.request_id for each in waiting]
        assert self.pool.num_waiting == len(waiting) and len(self.pool) == len(self.requests)
        assert self.num_words == self.num_expected
        assert self.pool.has_running is bool(self.holders)
        for executor_id in EXECUTORS:
            there = [each for each, holder in self.holders.items() if holder == executor_id]
            assert self.pool.holds_any(executor_id) is bool(there)
            running = [each for each in there if not self.pool.has_ended(each)]
            assert self.pool.holds_suspect(executor_id) is any(map(self.pool.is_suspect, running))
            assert [each for each in IDS if self.pool.is_held(each, executor_id)] == sorted(there)
        self.pool.check_integrity()

    @invariant()
    def each_is_as_it_came(self) -> None:
        for request_id in IDS:
            request = self.requests.get(request_id)
            assert self.pool.has_ended(request_id) is (request_id in self.ending)
            assert (request_id in self.pool) is (request is not None)
            if request is None:
                assert self.pool.prompt(request_id) is self.pool.scoped_prompt(request_id) is None
                assert self.pool.adapter(request_id) == ""
                continue
            packed, adapter = pack_tokens(request.prompt_token_ids), request.sampling.adapter
            assert self.pool.request(request_id) == request and self.pool.adapter(request_id) == adapter
            assert self.pool.scoped_prompt(request_id) == (packed, KVScope(None, adapter))
            assert self.pool.prompt(request_id) == marked(packed, adapter)
            assert self.pool.is_suspect(request_id) is (self.num_failures[request_id] >= SUSPECT_FAILURES)
            assert self.pool.num_bytes(request_id) > len(packed)
        assert (self.order.left, self.order.learnt) == (self.left, self.learnt)
        assert self.pool.num_learnt == len(self.learnt)


def scheduled(request: GenerateRequest) -> Request:
    num_tokens = len(request.prompt_token_ids)
    made = Request(request.request_id, Kind.OFFLINE, num_tokens + len(request.output_token_ids), num_tokens + 7)
    return replace(made, arrival_s=3.0, ends_at_limit=request.sampling.ignore_eos)


TestOfflinePool = PoolMachine.TestCase
TestOfflinePool.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def test_a_sample_is_spread_over_all_without_a_result() -> None:
    pool = make_pool("fcfs", [])
    assert pool.sample(4) == []
    pool.add([make_offline(number, prompt=10 + number, max_tokens=number + 1) for number in range(40)])
    pool.take(make_offline(0).request.request_id, "executor-0")
    assert pool.sample(4) == [OfflineLength(10 + number, number + 1) for number in (0, 10, 20, 30)]
    assert len(pool.sample(100)) == 40


@pytest.mark.parametrize(
    ("holder", "has_ended", "is_takers", "holder_then"),
    [
        (None, False, True, "taker"),
        ("giver", False, True, "taker"),
        ("giver", True, False, "giver"),
        ("taker", False, True, "taker"),
        ("taker", True, False, "taker"),
        ("other", False, False, "other"),
        ("other", True, False, "other"),
    ],
)
def test_a_request_that_moves_is_the_takers_where_it_is_the_givers_or_nobodys(
    holder: str | None, has_ended: bool, is_takers: bool, holder_then: str
) -> None:
    """Unless it has ended."""
    pool = make_pool("fcfs", [])
    pool.add([made := make_offline(1)])
    request_id = made.request.request_id
    if holder is not None:
        pool.take(request_id, holder)
        pool.settle(holder, [request_id], [request_id] if has_ended else [])
    assert pool.move(request_id, "giver", "taker") is is_takers
    assert [each for each in ("giver", "taker", "other") if pool.is_held(request_id, each)] == [holder_then]
    pool.check_integrity()
