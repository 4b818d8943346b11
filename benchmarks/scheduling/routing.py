"""Routing of online requests, what a decision costs and what prefix affinity gives:
``python -m benchmarks.scheduling.routing``.

The first table is the gateway's part of one request: hashing the prompt, choosing among executors whose caches are
full, and counting it. The second is a fleet of simulated GPUs in virtual time, the third a batch of groups of prompts
that such a fleet runs alone.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.harness.command import run_command
from benchmarks.harness.table import print_table, quantile, quantiles
from benchmarks.lab.lab import Machine
from benchmarks.scheduling.fleet import Choose, Fleet, Workload, by_prediction, least_requests, round_robin, run_backlog
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, RoutingTarget, choose
from shared.scheduling.request import Kind

MODEL = LinearLatencyModel(10.0, 0.07, 0.0004, 1e-7, 1e-12, 0.05, 0.05, 3e-6)
MACHINE = Machine("llama2-7b", "a100-40g")
SIZES, RATES = [2, 4], [4.0, 8.0]
BUDGET_MS = 100.0  # of a step of the batch that runs alone
BLOCK_SIZE, NUM_BLOCKS = 16, 16_384  # of an executor's KV cache: room for a quarter of a million tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of CPU time of each decision, by parts, ascending: what else the machine does is left out."""

    hashing: list[float]
    choosing: list[float]
    counting: list[float]


def full_targets(count: int, prompt_tokens: int) -> list[RoutingTarget]:
    """Executors whose caches are full, each with its own prompts and with work."""
    targets = []
    for index in range(count):
        cache = full_cache(index, prompt_tokens)
        target = RoutingTarget(f"executor-{index}", "epoch", 512, BLOCK_SIZE, NUM_BLOCKS, cache)
        target.observe(BatchFeatures(800, 3, 20_000, 40 + index % 7, 320_000))
        targets.append(target)
    return targets


def full_cache(index: int, prompt_tokens: int) -> PrefixCacheMirror:
    """All blocks are parts of prompts, which the executor with this number has."""
    hashes: list[bytes] = []
    for number in range(NUM_BLOCKS * BLOCK_SIZE // prompt_tokens):
        hashes += hash_chain([index, number] * (prompt_tokens // 2), BLOCK_SIZE)
    cache = PrefixCacheMirror()
    cache.apply(CacheChanges(1, True, (BlockChanges(free=b"".join(hashes)),)))
    return cache


def decision_cost(num_executors: int, prompt_tokens: int, rounds: int) -> Cost:
    """Prompts that share half of their tokens with what one executor has."""
    targets = full_targets(num_executors, prompt_tokens)
    options = [Option(target, MODEL) for target in targets]
    rng, cost = random.Random(1), Cost([], [], [])
    for number in range(rounds):
        shared = [number % num_executors, number % 7] * (prompt_tokens // 4)
        token_ids = shared + [rng.randrange(50_000) for _ in range(prompt_tokens - len(shared))]
        start = time.thread_time()
        prompt = Prompt(token_ids)
        prompt.hashes(BLOCK_SIZE)
        hashed = time.thread_time()
        target = choose(options, prompt, 64.0)
        chosen = time.thread_time()
        assert target is not None
        target.send(prompt).end()
        counted = time.thread_time()
        for times, span_s in zip(
            (cost.hashing, cost.choosing, cost.counting),
            (hashed - start, chosen - hashed, counted - chosen),
            strict=True,
        ):
            times.append(span_s * 1e6)
    return Cost(*(sorted(times) for times in (cost.hashing, cost.choosing, cost.counting)))


def cache_bytes() -> float:
    """What one executor's full cache takes in a gateway."""
    tracemalloc.start()
    cache = full_cache(0, 4096)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == NUM_BLOCKS
    return size


def decision_rows(rounds: int) -> list[list[str]]:
    rows = []
    for num_executors in (1, 2, 8, 64):
        for prompt_tokens in (128, 1024, 8192):
            cost = decision_cost(num_executors, prompt_tokens, rounds)
            parts = [quantile(times, 0.5) for times in (cost.hashing, cost.choosing, cost.counting)]
            figures = [*parts, sum(parts), quantile(cost.choosing, 0.99)]
            rows.append([str(num_executors), f"{prompt_tokens:,}", *(f"{figure:.0f}" for figure in figures)])
    return rows


def fleet_rows(sizes: list[int], rates: list[float], duration_s: float) -> list[list[str]]:
    ways: dict[str, Callable[[], Choose]] = {
        "predicted load and prefixes": lambda: by_prediction(MACHINE, with_prefixes=True),
        "predicted load": lambda: by_prediction(MACHINE, with_prefixes=False),
        "fewest requests": lambda: least_requests,
        "round-robin": round_robin,
    }
    rows = []
    for size in sizes:
        for rate in rates:
            workload = Workload(rate * size, duration_s, 40, 1536, 128)
            requests = workload.requests(seed=1)
            for name, make in ways.items():
                fleet = Fleet(MACHINE, size, make())
                fleet.run(requests)
                ttft = sorted(fleet.ttft_ms)
                figures = [f"{sum(ttft) / len(ttft):,.0f}", *quantiles(ttft, 0.5, 0.99, digits=0)]
                shares = [member.executor.replica.totals.finished_online for member in fleet.members]
                most = f"{max(shares) / sum(shares):.0%}"
                rows.append([str(size), f"{rate:g}", name, f"{fleet.hit_rate():.1%}", *figures, most])
    return rows


def grouped_requests(num_groups: int, group_size: int) -> list[GenerateRequest]:
    """Each group shares 2,048 tokens, and comes whole."""
    return [
        GenerateRequest(
            f"batch_1.{group * group_size + number}",
            Kind.OFFLINE,
            [group] * 2048 + [10_000 + number] * 64,
            SamplingParams(32, temperature=0.0, ignore_eos=True),
            0.0,
        )
        for group in range(num_groups)
        for number in range(group_size)
    ]


def backlog_rows(sizes: list[int], num_groups: int, group_size: int) -> list[list[str]]:
    requests = grouped_requests(num_groups, group_size)
    rows = []
    for size in [1, *sizes]:
        for keeps_groups in (True, False) if size > 1 else (True,):
            drained = run_backlog(MACHINE, size, BUDGET_MS, requests, keeps_groups)
            name = "keep to groups" if keeps_groups else "take what is next"
            rows.append([str(size), name if size > 1 else "", f"{drained.hit_rate:.1%}", f"{drained.duration_s:.1f}"])
    return rows


def main(
    rounds: Annotated[int, typer.Option(help="Decisions of each kind.")] = 500,
    sizes: Annotated[list[int], typer.Option(help="Executors of the fleets.")] = SIZES,
    rates: Annotated[list[float], typer.Option(help="Requests a second and executor.")] = RATES,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals, in virtual time.")] = 60.0,
    groups: Annotated[int, typer.Option(help="Of offline requests that share a prefix.")] = 60,
    group_size: Annotated[int, typer.Option(help="Requests of a group.")] = 24,
) -> None:
    columns = ["executors", "prompt tokens", "hashing us", "choosing us", "counting us", "together us", "choosing p99"]
    print_table(columns, decision_rows(rounds))
    print(f"\na full cache: {cache_bytes() / 2**20:.1f} MiB an executor\n")
    columns = ["executors", "req/s each", "routing", "hit rate", "TTFT mean ms", "p50", "p99", "most on one"]
    print_table(columns, fleet_rows(sizes, rates, duration))
    print()
    columns = ["executors", "each is to", "hit rate", "seconds for the batch"]
    print_table(columns, backlog_rows(sizes, groups, group_size))


if __name__ == "__main__":
    run_command(main)
