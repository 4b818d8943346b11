"""How many offline requests will read a block: what schedulers tell with plans, and what executors make of it."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool, PackedRequest
from shared.offline_queue.prompt_demand import PromptDemand
from shared.offline_queue.scheduler import Scheduler
from shared.offline_queue.told_readers import MAX_LOOKED_UP
from shared.protocol.codec import decode, encode
from shared.protocol.executors import ExecutorInfo
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import StepPlan, StepStarted
from shared.replica.block_readers import BlockReaders
from shared.replica.engine import StepResult
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.kv.block_hash import HASH_BYTES, hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.eviction.task_aware import TaskAware
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy
from tests.shared.replica.factories import make_info

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
STRATEGY = Strategy(kv_eviction="task-aware", offline_order="fcfs")
BLOCK = 16


class ManualClock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


def make_offline(number: int, document: int, length: int = 4 * BLOCK, own: int = 20) -> GenerateRequest:
    """A question of so many tokens about a document."""
    token_ids = [*range(1000 * document, 1000 * document + length), *([30_000 + number] * own)]
    sampling = SamplingParams(max_tokens=3, seed=number, ignore_eos=True)
    return GenerateRequest(f"batch.{number}", Kind.OFFLINE, token_ids, sampling, 0.0)


class Executor:
    """A replica with its planner, whose scheduler hears everything at once, unless something is lost."""

    def __init__(self, pool: OfflinePool, clock: ManualClock, info: ExecutorInfo) -> None:
        self.info, self.clock, self.pool = info, clock, pool
        self.replica = Replica(info.limits(), info.spec, None, info.strategy)
        self.planner = StepPlanner(self.replica, info.executor_id, info.epoch, 1)
        self.scheduler = self.make_scheduler()
        self.ended: list[str] = []

    def make_scheduler(self) -> Scheduler:
        self.clock.now_s += 0.001
        return Scheduler(self.info, self.pool, self.tuning, self.clock)

    def tuning(self) -> tuple[Policy, LatencyModel]:
        return Policy(), MODEL

    def say(self, message: StepStarted, loses_plans: bool = False) -> list[StepPlan]:
        self.scheduler.on_step(decode(encode(message), StepStarted))
        plans = [decode(encode(plan), StepPlan) for plan in self.scheduler.plan()]
        for plan in plans if not loses_plans else ():
            self.planner.take_plan(plan)
        return plans

    def step(self, loses_plans: bool = False) -> list[StepPlan]:
        """Runs one, and hears the plan of the next; the plans that were sent."""
        self.clock.now_s += 0.01
        source, running = self.planner.next_step(*self.tuning())
        self.collect()
        if not running:
            self.planner.rest()
            return self.say(self.planner.idle_message(), loses_plans)
        plans = self.say(self.planner.start(source), loses_plans)
        sampled = {
            sequence.request_id: 7
            for sequence, count in running
            if sequence.request.num_computed_tokens + count == sequence.request.num_tokens
        }
        self.replica.finish(StepResult(sampled, 1.0))
        self.collect()
        self.replica.pool.check_integrity()
        return plans

    def collect(self) -> None:
        self.ended += [each.sequence.request_id for each in self.planner.take_ended()]

    def make_durable(self) -> None:
        ended, self.ended = self.ended, []
        self.pool.discard(ended)

    def readers(self, hashes: Iterable[bytes]) -> list[int]:
        eviction = self.replica.pool.eviction
        assert isinstance(eviction, TaskAware)
        return [eviction._num_readers.get(key, 0) for key in hashes]


def make_pool() -> OfflinePool:
    return OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)


def add(pool: OfflinePool, requests: Iterable[GenerateRequest]) -> None:
    for request in requests:
        num_tokens = len(request.prompt_token_ids)
        scheduled = Request(request.request_id, Kind.OFFLINE, num_tokens, num_tokens + request.sampling.max_tokens)
        pool.keep([(scheduled, PackedRequest.of(request))])


def make_executor(strategy: Strategy = STRATEGY, max_num_seqs: int = 2, **spec: int) -> Executor:
    info = make_info(strategy, max_num_seqs=max_num_seqs, max_num_batched_tokens=256, **spec)
    return Executor(make_pool(), ManualClock(), info)


def true_readers(pool: OfflinePool, request: GenerateRequest) -> list[int]:
    runs, readers = pool.demand(BLOCK).runs(PackedRequest.of(request).prompt), list[int]()
    for end, count in runs:
        readers += [count] * (end - len(readers))
    return readers


def test_a_request_comes_with_the_readers_of_its_path() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=0) for number in range(5)]
    add(executor.pool, requests)
    executor.step()
    (plan,) = executor.step() or executor.step()
    assert plan.readers is not None
    executor.step()
    hashes = hash_chain(requests[0].prompt_token_ids, BLOCK)
    assert executor.readers(hashes) == [5, 5, 5, 5, 1]


def test_nobody_pays_whose_eviction_does_not_ask() -> None:
    executor = make_executor(Strategy(offline_order="fcfs"))
    add(executor.pool, [make_offline(number, 0) for number in range(5)])
    plans = [plan for _ in range(8) for plan in executor.step()]
    assert plans and all(plan.readers is None for plan in plans)
    assert not executor.pool._demands and executor.replica.pool.eviction.num_wanted == 0


def test_requests_that_come_later_leave_the_path_half_way_and_are_told() -> None:
    """A document's first question enters alone, its others come while it runs, and when it has ended what it has read
    is wanted, but for its own end."""
    executor = make_executor(max_num_seqs=1)
    first = make_offline(0, document=0)
    add(executor.pool, [first])
    executor.step()
    executor.step()
    hashes = hash_chain(first.prompt_token_ids, BLOCK)
    assert executor.readers(hashes) == [1] * 5
    long = make_offline(99, document=7, length=60, own=200)
    add(executor.pool, [long, *(make_offline(number, document=0) for number in range(1, 4))])
    while first.request_id not in executor.ended:
        executor.step()
    executor.make_durable()
    executor.step()
    assert executor.readers(hashes) == [3, 3, 3, 3, 0]
    assert executor.replica.pool.eviction.num_wanted == 4


def test_who_has_ended_reads_no_more_before_its_scheduler_says_so() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=0) for number in range(3)]
    add(executor.pool, requests)
    while executor.readers(hashes := hash_chain(requests[0].prompt_token_ids, BLOCK)) != [3, 3, 3, 3, 1]:
        executor.step()
    while not executor.ended:
        executor.step(loses_plans=True)
    assert executor.readers(hashes) == [2, 2, 2, 2, 0]


def test_what_ends_elsewhere_is_told() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=0) for number in range(9)]
    add(executor.pool, requests)
    for _ in range(3):
        executor.step()
    hashes = hash_chain(requests[0].prompt_token_ids, BLOCK)
    assert executor.readers(hashes)[:4] == [9] * 4
    executor.pool.discard([request.request_id for request in requests[3:]])
    executor.step()
    executor.step()
    assert executor.readers(hashes)[:4] == [3] * 4


def test_nothing_is_looked_up_while_nobody_comes_or_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make_executor(max_num_seqs=2)
    add(executor.pool, [make_offline(number, document=0, own=200) for number in range(3)])
    executor.step()
    executor.step()
    num_looked_up, runs = 0, PromptDemand.runs

    def counted(self: PromptDemand, prompt: bytes, first: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        nonlocal num_looked_up
        num_looked_up += 1
        return runs(self, prompt, first, end)

    monkeypatch.setattr(PromptDemand, "runs", counted)
    add(executor.pool, [make_offline(3, document=0)])
    executor.step()
    assert num_looked_up > 0
    num_before = num_looked_up
    plans = executor.step()
    assert plans and not executor.ended and num_looked_up == num_before


def test_a_reader_that_ends_here_counts_no_more_before_anybody_says_so() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=0) for number in range(2)]
    add(executor.pool, requests)
    hashes = hash_chain(requests[0].prompt_token_ids, BLOCK)
    while not executor.ended:
        executor.step(loses_plans=bool(executor.readers(hashes)[0]))
    assert executor.readers(hashes) == [1, 1, 1, 1, 0]


def test_an_aborted_reader_is_still_one_until_the_scheduler_says_otherwise() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=0) for number in range(2)]
    add(executor.pool, requests)
    executor.step()
    executor.step()
    executor.replica.abort([requests[0].request_id])
    hashes = hash_chain(requests[0].prompt_token_ids, BLOCK)
    assert executor.readers(hashes)[:4] == [2] * 4


def test_another_scheduler_begins_from_nothing_and_tells_of_what_is_held() -> None:
    executor = make_executor(max_num_seqs=1)
    requests = [make_offline(number, document=number // 4, own=60) for number in range(8)]
    add(executor.pool, requests)
    executor.step()
    executor.step()
    assert executor.replica._readers._counts
    left = make_pool()
    add(left, requests[:2])
    executor.pool = left
    executor.scheduler = executor.make_scheduler()
    executor.step()
    executor.step()
    hashes = hash_chain(requests[0].prompt_token_ids, BLOCK)
    assert executor.readers(hashes)[:5] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("seed", range(12))
def test_counts_follow_the_pool(seed: int) -> None:
    """Requests come, end here and elsewhere, plans are lost, schedulers begin anew. Once that is over, what is cached
    and told as wanted is that, and by as many, to a quarter and those who have ended here since; and nothing is kept
    of what has gone."""
    rng = random.Random(seed)
    executor = make_executor(max_num_seqs=2, num_blocks=rng.choice([24, 40, 64]))
    requests: dict[str, GenerateRequest] = {}
    for number in range(80):
        made = make_offline(number, rng.randint(0, 2), rng.randint(1, 5) * BLOCK, rng.randint(1, 40))
        requests[made.request_id] = made
        add(executor.pool, [made])
        if rng.random() < 0.1:
            executor.pool.discard([next(executor.pool.in_order()).request_id])
        if number < 50 and rng.random() < 0.03:
            executor.scheduler = executor.make_scheduler()
        executor.step(loses_plans=number < 50 and rng.random() < 0.1)
        if rng.random() < 0.5:
            executor.make_durable()
        executor.pool.check_integrity()
    executor.make_durable()
    executor.scheduler.takes_requests = False  # whoever is there goes on
    for each in range(8 + 2 * executor.info.spec.num_blocks // MAX_LOOKED_UP):
        keep_busy(executor, each)
    told = executor.scheduler._readers
    assert told is not None and not executor.replica.lacks_readers
    eviction = executor.replica.pool.eviction
    assert isinstance(eviction, TaskAware)
    wanted = list[tuple[int, int]]()
    for request in requests.values():
        hashes = hash_chain(request.prompt_token_ids, BLOCK)
        counts = zip(hashes, executor.readers(hashes), true_readers(executor.pool, request), strict=True)
        wanted += [(count, true_count) for key, count, true_count in counts if count and key in eviction._block_ids]
    assert wanted and all(true_count > 0 for _, true_count in wanted)
    num_ended = executor.replica.limits.max_num_seqs
    assert all(abs(count - true_count) <= max(count, true_count) / 4 + num_ended for count, true_count in wanted)
    assert len(told) <= executor.info.spec.num_blocks + 8
    assert len(executor.replica._readers) <= 4 * executor.info.spec.num_blocks


def keep_busy(executor: Executor, number: int) -> None:
    """A step with an online request in it, so that a plan is made."""
    request = GenerateRequest(
        f"on-{number}", Kind.ONLINE, [40_000 + number], SamplingParams(max_tokens=4, ignore_eos=True), 0.0, "gateway"
    )
    executor.replica.submit(request)
    executor.scheduler.on_inbox(request)
    executor.step()
    executor.make_durable()


def test_counts_of_what_is_gone_are_forgotten() -> None:
    readers = BlockReaders(BlockPool(8, BLOCK, TaskAware()))
    readers.follow(0.0, 0)
    for number in range(200):
        hashes = hash_chain(make_offline(number, number).prompt_token_ids, BLOCK)
        readers.enter(str(number), hashes, [(len(hashes), 2)])
        readers.leave(str(number), has_read=True)
    assert len(readers) <= 2 * 8 + len(hashes)


def test_what_is_read_by_who_is_held_is_not_forgotten() -> None:
    pool = BlockPool(2, BLOCK, TaskAware())
    readers = BlockReaders(pool)
    paths = {str(n): hash_chain(make_offline(n, n).prompt_token_ids, BLOCK) for n in range(20)}
    readers.follow(5.0, 0)
    for request_id, hashes in paths.items():
        readers.enter(request_id, hashes, [(2, 3), (len(hashes), 1)])
    assert len(readers) == sum(map(len, paths.values()))
    for request_id in paths:
        readers.leave(request_id, has_read=request_id != "0")
    assert len(readers) == 2 * len(paths) + len(paths["0"]) - 2
    readers.follow(6.0, 0)
    assert len(readers) == 0


class Noting(TaskAware):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[bytes, int] = {}

    def count_readers(self, key: bytes, num_readers: int) -> None:
        assert self.told.get(key, 0) != num_readers, "no news"
        self.told[key] = num_readers
        super().count_readers(key, num_readers)

    @property
    def wanted(self) -> dict[bytes, int]:
        return {key: count for key, count in self.told.items() if count}


contents = [bytes([number]) * HASH_BYTES for number in range(9)]
paths = st.lists(st.sampled_from(contents), unique=True)
words = st.one_of(
    st.tuples(st.just("enter"), st.integers(0, 3), paths, st.lists(st.integers(0, 2), min_size=9, max_size=9)),
    st.tuples(st.just("change"), st.integers(0, 3), paths, st.lists(st.integers(0, 2), min_size=9, max_size=9)),
    st.tuples(st.just("leave"), st.integers(0, 3), st.booleans(), st.none()),
    st.tuples(st.just("follow"), st.integers(0, 1), st.none(), st.none()),
)


@settings(max_examples=50)
@given(done=st.lists(words, min_size=5))
def test_readers_are_those_of_the_last_word_less_those_that_have_read(done: list[tuple[Any, ...]]) -> None:
    """Where there is room to remember all of them."""
    readers = BlockReaders(BlockPool(16, BLOCK, eviction := Noting()))
    counts, read = dict[bytes, int](), dict[int, list[bytes]]()
    since_s = number = 0
    readers.follow(since_s, number)
    for what, which, about, given_counts in done:
        if what == "enter":
            runs = [(end + 1, count) for end, count in enumerate(given_counts[: len(about)])]
            readers.enter(str(which), about, runs)
            counts |= dict(zip(about, given_counts, strict=False))
            read[which] = about
        elif what == "change":
            readers.change([(b"".join(about), which)])
            counts |= dict.fromkeys(about, which)
        elif what == "leave":
            readers.leave(str(which), has_read=about)
            for key in read.pop(which, []) if about else ():
                counts[key] = max(0, counts[key] - 1)
            read.pop(which, None)
        else:
            number = 0 if which else number + 1
            since_s += which
            readers.follow(since_s, number)
            if which:
                counts, read = {}, {}
        expected = {key: count for key, count in counts.items() if count}
        assert eviction.wanted == expected and len(readers) == len(expected)
    assert not readers.has_gap


def test_what_nobody_holds_is_kept_while_it_is_little_beside_what_is_read() -> None:
    """It is looked for once so much has come that the look costs little a count."""
    readers = BlockReaders(BlockPool(2, BLOCK, eviction := Noting()))
    readers.follow(0.0, 0)
    chain = [bytes([number]) * HASH_BYTES for number in range(100)]
    readers.enter("held", chain[:10], [(10, 2)])
    readers.enter("aborted", chain[10:14], [(4, 2)])
    readers.leave("aborted", has_read=False)
    readers.enter("next", chain[14:17], [(3, 2)])
    assert list(eviction.wanted) == chain[:17]
    readers.enter("many", chain[17:], [(83, 2)])
    assert list(eviction.wanted) == [*chain[:10], *chain[14:]]


def test_late_plans_tell_too() -> None:
    executor = make_executor(max_num_seqs=1)
    add(executor.pool, [make_offline(number, 0) for number in range(3)])
    executor.planner.step = 5
    (plan,) = executor.step() or executor.step()
    executor.replica.take_in_late(plan)
    assert executor.replica._readers._counts
    assert FinishReason.ERROR not in [each.finish_reason for each in executor.replica.take_ended()]


@pytest.mark.parametrize(
    ("words", "has_gap"),
    [
        ([(1.0, 0), (1.0, 1), (1.0, 1), (1.0, 2)], False),
        ([(1.0, 0), (1.0, 2), (1.0, 3)], True),
        ([(1.0, 1)], True),
        ([(1.0, 0), (1.0, 5), (2.0, 0), (2.0, 1)], False),
        ([(1.0, 0), (2.0, 1)], True),
    ],
)
def test_a_word_that_is_lost_is_noticed(words: list[tuple[float, int]], has_gap: bool) -> None:
    readers = BlockReaders(BlockPool(2, BLOCK, TaskAware()))
    for since_s, number in words:
        readers.follow(since_s, number)
    assert readers.has_gap is has_gap
