"""Executors, pool and router in virtual time: everything ends once, on however many executors and however deep."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from shared.latency.linear import LinearLatencyModel
from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, RoutingTarget
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy
from shared.simulation.executor import Progress
from shared.simulation.setup import ExecutorSetup
from shared.simulation.system import VirtualSystem

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
NUM_BLOCKS = 64


def make_setup(preset: str = "hygen", depth: int = 1, **changes: float | str) -> ExecutorSetup:
    spec = EngineSpec("m", "simulated", "none", "float16", 512, 1 << 20, 16, NUM_BLOCKS, (), depth, num_host_slots=512)
    knobs = {"budget_ms": 30.0} if preset == "hygen" else {}
    strategy = Strategy.of(preset, **knobs, **changes)
    return ExecutorSetup(Limits(16, NUM_BLOCKS, 64, 16), spec, strategy, MODEL, MODEL)


def make_online(number: int, arrival_s: float, prefix: int = 0) -> GenerateRequest:
    rng = random.Random(number)
    token_ids = [prefix] * 96 + [1000 * number + index for index in range(rng.randint(1, 80))]
    sampling = SamplingParams(rng.randint(1, 20), seed=number, ignore_eos=True)
    return GenerateRequest(f"on-{number}", Kind.ONLINE, token_ids, sampling, arrival_s)


def make_offline(number: int) -> tuple[Request, PackedRequest]:
    rng = random.Random(f"offline {number}")
    token_ids = [9] * 64 + [100_000 + 1000 * number + index for index in range(rng.randint(1, 200))]
    sampling = SamplingParams(rng.randint(1, 30), seed=number, ignore_eos=True)
    request = GenerateRequest(f"batch.{number}", Kind.OFFLINE, token_ids, sampling, 0.0)
    total = len(token_ids) + sampling.max_tokens
    return Request(request.request_id, Kind.OFFLINE, len(token_ids), total), PackedRequest.of(request)


class Run:
    """A system with what came of it."""

    def __init__(self, setups: Sequence[ExecutorSetup], message_s: float = 0.0) -> None:
        order = setups[0].strategy.make_offline_order(iter(random.Random(0).random, None))
        self.system = VirtualSystem(setups, FairShare(order), self.take, message_s)
        self.ended: Counter[str] = Counter()
        self.ran_on: dict[str, str] = {}
        self.num_tokens = 0
        self.last_s = 0.0

    def take(self, progress: Progress) -> None:
        assert progress.start_s <= progress.end_s
        self.num_tokens += len(progress.outputs)
        for ended in progress.ended:
            self.ended[ended.sequence.request_id] += 1
            self.ran_on[ended.sequence.request_id] = progress.executor_id
        self.last_s = self.system.events.now_s

    def play(self, online: Sequence[GenerateRequest]) -> None:
        events = self.system.events
        for request in online:
            while events.next_s is not None and events.next_s < request.arrival_s:
                events.run_next()
            events.advance(request.arrival_s)
            self.system.submit(request)
        while events.next_s is not None:
            events.run_next()


@pytest.mark.parametrize("preset", ["hygen", "bros", "fcfs", "round-robin", "echo"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("num_executors", [1, 3])
@pytest.mark.parametrize("message_s", [0.0, 0.004])
def test_everything_ends_once(preset: str, depth: int, num_executors: int, message_s: float) -> None:
    run = Run([make_setup(preset, depth)] * num_executors, message_s)
    run.system.queue.add([make_offline(number) for number in range(40)])
    rng = random.Random(preset)
    times = sorted(rng.uniform(0, 3) for _ in range(40))
    run.play([make_online(number, time_s, number % 4) for number, time_s in enumerate(times)])
    assert run.ended == Counter([*(f"on-{n}" for n in range(40)), *(f"batch.{n}" for n in range(40))])
    assert len(set(run.ran_on.values())) == num_executors
    for executor in run.system.executors.values():
        assert not executor.replica.has_work and executor.replica.pool.num_free == NUM_BLOCKS
        executor.replica.pool.check_integrity()
        executor.replica.table.check_integrity()
    run.system.queue.pool.check_integrity()
    assert not len(run.system.queue.pool)


def test_the_same_run_is_the_same() -> None:
    runs = [Run([make_setup(depth=2)] * 2, 0.001) for _ in range(2)]
    for run in runs:
        run.system.queue.add([make_offline(number) for number in range(20)])
        run.play([make_online(number, 0.05 * number, number % 3) for number in range(30)])
    assert (runs[0].last_s, runs[0].ran_on) == (runs[1].last_s, runs[1].ran_on)


def test_plans_come_in_time_where_messages_take_none() -> None:
    run = Run([make_setup()])
    run.system.queue.add([make_offline(number) for number in range(30)])
    run.play([])
    (executor,) = run.system.executors.values()
    counters = executor.replica.totals
    assert counters.steps == counters.steps_planned > 30 and counters.offline_dropped == 0


def test_requests_of_plans_that_come_too_late_run_all_the_same() -> None:
    """A message takes longer than any step, and steps follow each other without a pause."""
    run = Run([make_setup()], message_s=0.2)
    run.system.queue.add([make_offline(number) for number in range(5)])
    online = make_online(0, 0.0)
    run.play([replace(online, sampling=replace(online.sampling, max_tokens=300))])
    (executor,) = run.system.executors.values()
    assert executor.replica.totals.steps_local > 200 and executor.replica.totals.plans_stale > 0
    assert list(run.ended)[-1] == "on-0" and len(run.ended) == 6


@pytest.mark.parametrize("message_s", [0.004, 0.02])
@pytest.mark.parametrize("num_executors", [1, 2])
def test_requests_of_one_short_step_run_once(num_executors: int, message_s: float) -> None:
    """A message takes about as long as such a step: that nothing runs is told while a plan is on its way."""
    run = Run([make_setup()] * num_executors, message_s)
    for number in range(60):
        asked = make_online(number, 0.0)
        asked = replace(asked, request_id=f"batch.{number}", kind=Kind.OFFLINE, sampling=SamplingParams(1))
        num_tokens = len(asked.prompt_token_ids)
        waiting = Request(asked.request_id, Kind.OFFLINE, num_tokens, num_tokens + 1), PackedRequest.of(asked)
        run.system.events.at(0.013 * number, partial(run.system.queue.add, [waiting]))
    run.play([])
    assert run.ended == Counter(f"batch.{number}" for number in range(60))


def test_a_deeper_pipeline_does_more_at_a_time() -> None:
    """Twice as many steps are in flight, each as long as before."""
    last_s = []
    for depth in (1, 2):
        run = Run([make_setup("sarathi++", depth)])
        run.system.queue.add([make_offline(number) for number in range(40)])
        run.play([])
        last_s.append(run.last_s)
    assert last_s[1] < 0.8 * last_s[0]


def test_requests_that_begin_alike_go_to_the_same_executor() -> None:
    run = Run([make_setup("online-only")] * 2)
    run.play([make_online(number, 0.4 * number, number % 2) for number in range(20)])
    by_prefix = [{run.ran_on[f"on-{number}"] for number in range(half, 20, 2)} for half in (0, 1)]
    assert [len(each) for each in by_prefix] == [1, 1] and by_prefix[0] != by_prefix[1]


def test_another_choice_of_executor() -> None:
    def last(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget:
        return options[-1].target

    order = make_setup().strategy.make_offline_order(iter(random.Random(0).random, None))
    system = VirtualSystem([make_setup()] * 3, FairShare(order), lambda progress: None, choose=last)
    system.submit(make_online(0, 0.0))
    assert [executor.replica.has_work for executor in system.executors.values()] == [False, False, True]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_executors", [1, 2])
def test_requests_that_enter_are_planned_with_what_the_prefix_cache_has(num_executors: int, depth: int) -> None:
    """All offline prompts begin with the same four blocks: what is planned for them is what is left to compute."""
    run = Run([make_setup(depth=depth)] * num_executors)
    run.system.queue.add([make_offline(number) for number in range(60)])
    run.play([make_online(number, 0.2 * number, number % 2) for number in range(20)])
    for executor in run.system.executors.values():
        totals = executor.replica.totals
        assert totals.cached_tokens > 0.3 * totals.prompt_tokens
        assert totals.entrant_tokens_planned == pytest.approx(totals.entrant_tokens_computed, rel=0.03)


def test_without_the_caches_word_entrants_are_charged_in_full() -> None:
    """A scheduler that has not been told costs throughput, no outcome."""
    told, untold = Run([make_setup()]), Run([make_setup()])
    for run in (told, untold):
        run.system.queue.add([make_offline(number) for number in range(60)])
    forget = untold.system.executors["executor-0"].replica.pool
    forget.take_cache_changes = lambda: CacheChanges()  # type: ignore[method-assign]
    for run in (told, untold):
        run.play([])
    assert told.ended == untold.ended and told.last_s < untold.last_s
