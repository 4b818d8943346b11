"""Routing of online requests, what a decision costs and what prefix affinity gives:
``python -m benchmarks.scheduling.routing``.

The first table is the gateway's part of one request: hashing the prompt, choosing among executors whose caches are
full, and counting it. The second is a fleet of simulated GPUs in virtual time, the third a batch of groups of prompts
that such a fleet runs alone.
"""

import random
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated

import typer

from benchmarks.harness.command import Results, Row, benchmark, formatted, quantile, quantiles
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import HYGEN, ONLINE_ONLY, Machine
from benchmarks.scheduling.fleet import (
    Fleet,
    TakesWhatIsNext,
    choose_by_load,
    grouped_requests,
    least_requests,
    prefixed_requests,
    round_robin,
)
from benchmarks.scheduling.planning import LINEAR
from shared.latency.features import BatchFeatures
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, RoutingTarget, choose
from shared.simulation.router import Choose

MACHINE = Machine("llama2-7b", "a100-40g")
SIZES, RATES = [2, 4], [4.0, 8.0]
BUDGET_MS = 100.0  # of a step of the batch that runs alone
BLOCK_SIZE, NUM_BLOCKS = 16, 16_384  # of an executor's KV cache: room for a quarter of a million tokens


def full_target(index: int, prompt_tokens: int) -> RoutingTarget:
    """An executor whose cache is full, with its own prompts and with work."""
    cache = full_cache(index, prompt_tokens)
    target = RoutingTarget(f"executor-{index}", "epoch", 512, BLOCK_SIZE, NUM_BLOCKS, cache)
    target.observe(BatchFeatures(800, 3, 20_000, 40 + index % 7, 320_000))
    return target


def full_cache(index: int, prompt_tokens: int) -> PrefixCacheMirror:
    """All blocks are parts of prompts, which the executor with this number has."""
    hashes: list[bytes] = []
    for number in range(NUM_BLOCKS * BLOCK_SIZE // prompt_tokens):
        hashes += hash_chain([index, number] * (prompt_tokens // 2), BLOCK_SIZE)
    cache = PrefixCacheMirror()
    cache.apply(CacheChanges(1, True, (BlockChanges(free=b"".join(hashes)),)))
    return cache


def decision_row(num_executors: int, prompt_tokens: int, rounds: int) -> Row:
    """Prompts share half of their tokens with what one executor has; CPU time leaves out what else the machine does."""
    options = [Option(full_target(index, prompt_tokens), LINEAR) for index in range(num_executors)]
    rng = random.Random(1)
    hashing, choosing, counting = (Times(processor_s=time.thread_time) for _ in range(3))
    for number in range(rounds):
        shared = [number % num_executors, number % 7] * (prompt_tokens // 4)
        prompt = Prompt(shared + [rng.randrange(50_000) for _ in range(prompt_tokens - len(shared))])
        hashing.time(partial(prompt.hashes, BLOCK_SIZE))
        target = choosing.time(partial(choose, options, prompt, 64.0))
        assert target is not None
        counting.time(partial(count, target, prompt))
    parts = {"hashing us": hashing, "choosing us": choosing, "counting us": counting}
    us = {heading: quantile(sorted(times.cpu_ms), 0.5) * 1e3 for heading, times in parts.items()}
    return {
        "executors": str(num_executors),
        "prompt tokens": f"{prompt_tokens:,}",
        **formatted(".0f", {**us, "together us": sum(us.values())}),
        "choosing p99": f"{quantile(sorted(choosing.cpu_ms), 0.99) * 1e3:.0f}",
    }


def count(target: RoutingTarget, prompt: Prompt) -> None:
    target.send(prompt).end()


def cache_bytes() -> float:
    """What one executor's full cache takes in a gateway."""
    tracemalloc.start()
    cache = full_cache(0, 4096)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == NUM_BLOCKS
    return size


def online_rows(sizes: list[int], rates: list[float], duration_s: float) -> Iterator[Row]:
    for size, rate in product(sizes, rates):
        requests = prefixed_requests(rate * size, duration_s, 40, 1536, 128, seed=1)
        ways: dict[str, Choose] = {
            "predicted load and prefixes": choose,
            "predicted load": choose_by_load,
            "fewest requests": least_requests,
            "round-robin": round_robin(),
        }
        for name, way in ways.items():
            fleet = Fleet(MACHINE, size, ONLINE_ONLY.strategy, route=way)
            fleet.serve_online(requests)
            ttft = sorted((fleet.first_token_s[each.request_id] - each.arrival_s) * 1e3 for each in requests)
            shares = [totals.finished_online for totals in fleet.totals]
            yield {
                "executors": str(size),
                "req/s each": f"{rate:g}",
                "routing": name,
                "hit rate": f"{fleet.hit_rate:.1%}",
                "TTFT mean ms": f"{sum(ttft) / len(ttft):,.0f}",
                **quantiles(ttft, {"p50": 0.5, "p99": 0.99}, digits=0),
                "most on one": f"{max(shares) / sum(shares):.0%}",
            }


def backlog_rows(sizes: list[int], num_groups: int, group_size: int) -> Iterator[Row]:
    requests = grouped_requests(num_groups, group_size)
    ways = {"keep to groups": FairShare, "take what is next": TakesWhatIsNext}
    for size, (name, share) in product([1, *sizes], ways.items()):
        if size > 1 or share is FairShare:
            fleet = Fleet(MACHINE, size, HYGEN.under(BUDGET_MS), share)
            fleet.serve_backlog(requests)
            yield {
                "executors": str(size),
                "each is to": name if size > 1 else "",
                "hit rate": f"{fleet.hit_rate:.1%}",
                "seconds for the batch": f"{max(fleet.end_s.values()):.1f}",
            }


@benchmark
def main(
    rounds: Annotated[int, typer.Option(help="Decisions of each kind.")] = 500,
    sizes: Annotated[list[int], typer.Option(help="Executors of the fleets.")] = SIZES,
    rates: Annotated[list[float], typer.Option(help="Requests a second and executor.")] = RATES,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals, in virtual time.")] = 60.0,
    groups: Annotated[int, typer.Option(help="Of offline requests that share a prefix.")] = 60,
    group_size: Annotated[int, typer.Option(help="Requests of a group.")] = 24,
) -> Results:
    for num_executors, prompt_tokens in product((1, 2, 8, 64), (128, 1024, 8192)):
        yield decision_row(num_executors, prompt_tokens, rounds)
    yield f"a full cache: {cache_bytes() / 2**20:.1f} MiB an executor"
    yield from online_rows(sizes, rates, duration)
    yield from backlog_rows(sizes, groups, group_size)
