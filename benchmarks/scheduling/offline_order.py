"""The offline pool by order: inserts, memory, the next request, a batch that joins a large pool, and what sharing and
fairness cost each other:
``python -m benchmarks.scheduling.offline_order``.

All times are the processor's, so that figures hold beside other work. Prompts are 5-shot questions in kind: three
quarters are the prefix of one of 57 groups, groups arrive mixed. In ``apart`` no two prompts share a block.
"""

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from multiprocessing import get_context
from typing import Annotated

import psutil
import typer
from msgspec.structs import replace

from benchmarks.harness.command import Results, Row, benchmark, formatted, quantiles
from shared.offline_queue.offline_pool import OfflinePool
from shared.process.memory import collect_seldom
from shared.protocol.offline.requests import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.orders.offline import registry
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.registry import DEFAULT_BLOCK_SIZE
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import NO_OFFLINE_WORK

ORDERS = [order for order in registry.OFFLINE_ORDERS if order != NO_OFFLINE_WORK]
GROUPS = 57
BATCH = "batch_00000000000000000000000000000001"
VOCABULARY = 49_152
INGEST_REQUESTS = 256  # that the pool is handed at once, as batches do
INSERT_TOKENS, INSERT_REQUESTS = 512, 20_000
MEMORY_TOKENS, MEMORY_REQUESTS = 1_000, 100_000
MEMORY = "MB of 100,000 x 1,000 tokens"
LARGE_POOL, JOINING, JOINING_TOKENS = 400_000, 1_000, 64
BACKLOG, SERVED, RUNNING, CACHE_BLOCKS = 1_000, 15_000, 16, 1_024


def make_pool(order: str) -> OfflinePool:
    """Empty, told to nobody."""
    made = registry.make_offline_order(order, registry.OfflineOrderKnobs(), iter(random.Random(1).random, None))
    return OfflinePool(FairShare(made), lambda: None, lambda _, __: None)


def offline_request(number: int, prompt: list[int], max_tokens: int = 128, batch: str = "batch_1") -> OfflineRequest:
    """Line ``number`` of a batch."""
    sampling = SamplingParams(max_tokens, seed=number, ignore_eos=True)
    generate = GenerateRequest(f"{batch}.{number}", Kind.OFFLINE, prompt, sampling, 0.0)
    return OfflineRequest(generate, batch, number, f"custom-{number}", "m")


def make_requests(prompt_len: int, is_shared: bool) -> Iterator[OfflineRequest]:
    """Endless; each with a list of its own."""
    rng = random.Random(1)
    prefixes = [rng.choices(range(VOCABULARY), k=prompt_len * 3 // 4) for _ in range(GROUPS)]
    for number in count(1):
        prefix = rng.choice(prefixes) if is_shared else []
        prompt = prefix + rng.choices(range(VOCABULARY), k=prompt_len - len(prefix))
        yield offline_request(number, prompt, batch=BATCH)


def inserts_and_discards_per_s(order: str, is_shared: bool) -> tuple[float, float]:
    pool = make_pool(order)
    requests = list(islice(make_requests(INSERT_TOKENS, is_shared), INSERT_REQUESTS))
    start_s = time.process_time()
    for index in range(0, len(requests), INGEST_REQUESTS):
        pool.add(requests[index : index + INGEST_REQUESTS])
    added_s = time.process_time()
    pool.discard([request.request.request_id for request in requests])
    end_s = time.process_time()
    return len(requests) / (added_s - start_s), len(requests) / (end_s - added_s)


def next_request_us(order: str) -> list[float]:
    """Microseconds to read and take the next of 10,000 that wait behind 256 that run, fastest first."""
    pool = make_pool(order)
    pool.add(list(islice(make_requests(INSERT_TOKENS, True), 12_000)))
    running: deque[str] = deque()
    times = []
    while len(running) < 2_000:
        start_s = time.process_time()
        request_id = next(pool.in_order()).request_id
        pool.take(request_id, "executor-0")
        times.append((time.process_time() - start_s) * 1e6)
        running.append(request_id)
        if len(running) > 256:
            pool.discard([running[-257]])
    return sorted(times[256:])


def joining_ms(order: str, is_shared: bool) -> list[float]:
    """Milliseconds of each of 1,000 requests that join 400,000, of many lengths, known and not, fastest first. To be
    asked in a process of its own."""
    pool, rng = make_pool(order), random.Random(3)
    requests = make_requests(JOINING_TOKENS, is_shared)

    def next_request() -> OfflineRequest:
        request = next(requests)
        ends_at = rng.choice([2, 16, 128, 1024, 16_384])
        sampling = SamplingParams(ends_at, seed=request.line, ignore_eos=rng.random() < 0.5)
        return replace(request, request=replace(request.request, sampling=sampling))

    while len(pool) < LARGE_POOL:
        pool.add([next_request() for _ in range(INGEST_REQUESTS)])
    collect_seldom()
    times = []
    for request in [next_request() for _ in range(JOINING)]:
        start_s = time.process_time()
        pool.add([request])
        times.append((time.process_time() - start_s) * 1e3)
    return sorted(times)


def memory_mb(order: str, is_shared: bool) -> float:
    """Growth of the resident set of this process, which should be a fresh one."""
    requests = make_requests(MEMORY_TOKENS, is_shared)
    list(islice(requests, INGEST_REQUESTS))
    process = psutil.Process()
    before = process.memory_info().rss
    pool = make_pool(order)
    while len(pool) < MEMORY_REQUESTS:
        pool.add(list(islice(requests, min(INGEST_REQUESTS, MEMORY_REQUESTS - len(pool)))))
    assert pool.num_waiting == MEMORY_REQUESTS
    return (process.memory_info().rss - before) / 1e6


def cached_and_waits(order: str, utility_ratio: float) -> tuple[float, list[int]]:
    """A backlog that is filled up as it is served, over a KV cache that holds twice what runs: the share of prompt
    tokens that need no computing, and how many others each request waited for, least first."""
    requests = make_requests(INSERT_TOKENS, True)
    knobs = registry.OfflineOrderKnobs(utility_ratio=utility_ratio)
    made = registry.make_offline_order(order, knobs, iter(random.Random(2).random, None))
    cache = BlockPool(CACHE_BLOCKS, registry.DEFAULT_BLOCK_SIZE)
    prompts: dict[str, tuple[int, list[int]]] = {}  # with the turn of arrival
    running: deque[str] = deque()
    cached, waits = 0, []
    for turn in range(SERVED):
        for request in islice(requests, BACKLOG - made.num_waiting):
            request_id, token_ids = request.request.request_id, request.request.prompt_token_ids
            prompts[request_id] = turn, token_ids
            waiting = Request(request_id, Kind.OFFLINE, INSERT_TOKENS, INSERT_TOKENS + 128)
            made.add(waiting, pack_tokens(token_ids))
        request_id = next(made.in_order()).request_id
        made.take(request_id)
        made.remove(request_id)
        arrival, prompt = prompts.pop(request_id)
        waits.append(turn - arrival)
        if len(running) == RUNNING:
            cache.free(running.popleft())
        running.append(request_id)
        hashes = hash_chain(prompt, DEFAULT_BLOCK_SIZE)
        cached += cache.start(request_id, Kind.OFFLINE, len(prompt), hashes)
        assert cache.grow(request_id, len(prompt))
        cache.commit(request_id, len(prompt), hashes)
    waits += [SERVED - arrival for arrival, _ in prompts.values()]
    return cached / (SERVED * INSERT_TOKENS), sorted(waits)


def costs(orders: Sequence[str]) -> Iterator[Row]:
    for order in orders:
        times = next_request_us(order)
        for is_shared in (True, False):
            inserts, discards = inserts_and_discards_per_s(order, is_shared)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                memory = fresh.submit(memory_mb, order, is_shared).result()
            taken = quantiles(times, {"next p50 us": 0.5, "p99 us": 0.99}, digits=0)
            yield {
                "order": order,
                "prompts": "shared" if is_shared else "apart",
                **formatted(",.0f", {"inserts/s": inserts, "discards/s": discards, MEMORY: memory}),
                **(taken if is_shared else dict.fromkeys(taken, "")),
            }


def joins(orders: Sequence[str]) -> Iterator[Row]:
    for order in orders:
        for is_shared in (True, False):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                times = fresh.submit(joining_ms, order, is_shared).result()
            yield {
                "order": order,
                "prompts": "shared" if is_shared else "apart",
                **formatted(".1f", {"1,000 into 400,000 ms": sum(times)}),
                **formatted(".2f", {"worst insert ms": times[-1]}),
            }


def fairness() -> Iterator[Row]:
    for order, ratio in (("fcfs", 0.0), *(("psm-fair", u) for u in (0.5, 0.8, 0.9, 0.95, 0.99)), ("psm", 1.0)):
        cached, waits = cached_and_waits(order, ratio)
        waited = quantiles(waits, {"waited p50": 0.5, "p99": 0.99, "max": 1.0}, digits=0)
        yield {"order": order, "u": f"{ratio:g}", "prompt tokens cached": f"{cached:.1%}", **waited}


@benchmark
def main(
    only: Annotated[str | None, typer.Option(help="costs, joins or fairness.")] = None,
    order: Annotated[list[str] | None, typer.Option(help="Of costs and joins; all unless given.")] = None,
) -> Results:
    if only in (None, "costs"):
        yield from costs(order or ORDERS)
    if only in (None, "joins"):
        yield from joins(order or ORDERS)
    if only in (None, "fairness"):
        yield from fairness()
