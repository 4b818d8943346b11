"""Bursts of online work beside offline work that fills the KV cache: what the reserve keeps."""

import random
from dataclasses import dataclass

import pytest

from shared.latency.linear import LinearLatencyModel
from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.eviction.task_aware import TaskAware
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy
from shared.simulation.executor import Progress
from shared.simulation.setup import ExecutorSetup
from shared.simulation.system import VirtualSystem

MODEL = LinearLatencyModel(20.0, 0.05, 0.001, 0.0, 0.0, 0.1, 0.5)
NUM_BLOCKS, BLOCK = 240, 16
BURST_S, NUM_BURSTS = 4.0, 12
LEARNED_S = 3 * BURST_S  # so many bursts are seen before any counts


@dataclass
class Lost:
    """Blocks that were given up though offline requests were to read them, once bursts are known."""

    num_wanted: int = 0
    is_counting: bool = False


def make_offline(number: int, document: int) -> tuple[Request, PackedRequest]:
    """A question about a document of 10 blocks."""
    token_ids = [*range(1000 * document, 1000 * document + 10 * BLOCK), *[90_000 + number] * 30]
    sampling = SamplingParams(24, seed=number, ignore_eos=True)
    request = GenerateRequest(f"batch.{number}", Kind.OFFLINE, token_ids, sampling, 0.0)
    total = len(token_ids) + sampling.max_tokens
    return Request(request.request_id, Kind.OFFLINE, len(token_ids), total), PackedRequest.of(request)


def make_burst(number: int) -> list[GenerateRequest]:
    """Ten requests of 11 blocks each, which take some two seconds."""
    return [
        GenerateRequest(
            f"on-{number}-{each}",
            Kind.ONLINE,
            [200_000 + 100 * number + each] * (6 * BLOCK),
            SamplingParams(5 * BLOCK - 8, seed=each, ignore_eos=True),
            number * BURST_S + 1.0,
            "gateway",
        )
        for each in range(10)
    ]


@dataclass
class Outcome:
    lost: Lost
    num_preempted: int  # once bursts are known
    tokens: dict[str, list[int]]
    most_reserved: int


def run(monkeypatch: pytest.MonkeyPatch, **given: str | float) -> Outcome:
    lost, evict = Lost(), TaskAware.evict

    def counted(self: TaskAware) -> int:
        num_before = self.num_wanted
        block_id = evict(self)
        lost.num_wanted += lost.is_counting and self.num_wanted < num_before
        return block_id

    monkeypatch.setattr(TaskAware, "evict", counted)
    strategy = Strategy.of("sarathi++", kv_eviction="task-aware", offline_order="psm", **given)
    spec = EngineSpec("m", "simulated", "none", "float16", 512, 1 << 20, BLOCK, NUM_BLOCKS, ())
    setup = ExecutorSetup(Limits(BLOCK, NUM_BLOCKS, 256, 64), spec, strategy, MODEL, MODEL)
    tokens: dict[str, list[int]] = {}

    def take(progress: Progress) -> None:
        for ended in progress.ended:
            tokens[ended.sequence.request_id] = ended.sequence.output_token_ids

    order = FairShare(strategy.make_offline_order(iter(random.Random(0).random, None)))
    system = VirtualSystem([setup], order, take)
    documents = random.Random(3)
    system.queue.add([make_offline(number, documents.randrange(40)) for number in range(500)])
    (executor,), events = system.executors.values(), system.events
    totals, most_reserved, num_before = executor.replica.totals, 0, 0
    for number in range(NUM_BURSTS):
        start_s = number * BURST_S + 1.0
        while events.next_s is not None and events.next_s < start_s:
            events.run_next()
        events.advance(start_s)
        if start_s > LEARNED_S and not lost.is_counting:
            lost.is_counting, num_before = True, totals.preemptions
        most_reserved = max(most_reserved, executor.replica.num_reserved_blocks)
        for request in make_burst(number):
            system.submit(request)
    while events.next_s is not None and events.next_s < NUM_BURSTS * BURST_S:
        events.run_next()
    lost.is_counting, num_preempted = False, totals.preemptions - num_before
    while events.next_s is not None:
        events.run_next()
    executor.replica.pool.check_integrity()
    return Outcome(lost, num_preempted, tokens, most_reserved)


def test_no_kv_that_somebody_will_read_is_lost_to_a_burst_where_there_is_a_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = run(monkeypatch)
    beside = run(monkeypatch, kv_reserve="burst", reserve_window_s=60.0)
    assert without.lost.num_wanted > 0 and without.num_preempted > 0 == without.most_reserved
    assert beside.lost.num_wanted == beside.num_preempted == 0 < beside.most_reserved
    assert beside.tokens == without.tokens and len(beside.tokens) == 500 + 10 * NUM_BURSTS
