"""Routing of online requests, what a decision costs and what prefix affinity gives:
``python -m benchmarks.scheduling.routing``.

The first table is the gateway's part of one request: hashing the prompt, choosing among executors whose caches are
full, and counting it. The second is several simulated GPUs in virtual time, the third a batch of groups of prompts that
they run alone.
"""

import random
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, product
from typing import Annotated
from unittest.mock import patch

import typer

from benchmarks.harness.command import Results, Row, benchmark, formatted, quantile
from benchmarks.harness.turns import Times
from benchmarks.lab.drawn import exponential, poisson, with_prefix
from benchmarks.lab.lab import HYGEN, ONLINE_ONLY, SEED, Bench, Load, Machine
from benchmarks.scheduling.planning import LINEAR
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.traces import TraceRequest
from shared.latency.features import BatchFeatures
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, RoutingTarget, choose
from shared.simulation.router import Choose

MACHINE = Machine("llama2-7b", "a100-40g")
SIZES, RATES = (2, 4), (4.0, 8.0)  # executors; online requests/s of each
NUM_PREFIXES, PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 40, 1536, 128, 64  # online; the last two in the mean
GROUP_SIZE, GROUP_TOKENS, LINE_TOKENS, LINE_OUTPUT_TOKENS = 24, 2048, 64, 32  # offline
BUDGET_MS, LONGEST_S = 100.0, 3600.0  # of a step of the batch that runs alone, and of all of it
BLOCK_SIZE, NUM_BLOCKS = 16, 16_384  # of an executor's KV cache: room for a quarter of a million tokens


def full_cache(index: int, prompt_tokens: int) -> PrefixCacheMirror:
    """All blocks are parts of prompts, which the executor with this number has."""
    hashes: list[bytes] = []
    for number in range(NUM_BLOCKS * BLOCK_SIZE // prompt_tokens):
        hashes += hash_chain([index, number] * (prompt_tokens // 2), BLOCK_SIZE)
    cache = PrefixCacheMirror()
    cache.apply(CacheChanges(1, True, (BlockChanges(free=b"".join(hashes)),)))
    return cache


def decision_row(num_executors: int, prompt_tokens: int, rounds: int) -> Row:
    """Prompts share half of their tokens with what one executor has, all of which have work; CPU time leaves out what
    else the machine does."""
    options, rng = [], random.Random(1)
    for index in range(num_executors):
        cache = full_cache(index, prompt_tokens)
        target = RoutingTarget(f"executor-{index}", "epoch", 512, BLOCK_SIZE, NUM_BLOCKS, cache)
        target.observe(BatchFeatures(800, 3, 20_000, 40 + index % 7, 320_000))
        options.append(Option(target, LINEAR))
    hashing, choosing, counting = (Times(processor_s=time.thread_time) for _ in range(3))
    for number in range(rounds):
        shared = [number % num_executors, number % 7] * (prompt_tokens // 4)
        prompt = Prompt(shared + [rng.randrange(50_000) for _ in range(prompt_tokens - len(shared))])
        hashing.time(partial(prompt.hashes, BLOCK_SIZE))
        chosen = choosing.time(partial(choose, options, prompt, 64.0))
        assert chosen is not None
        counting.time(partial(send_and_end, chosen, prompt))
    parts = {"hashing us": hashing, "choosing us": choosing, "counting us": counting}
    us = {heading: times.median_cpu_ms * 1e3 for heading, times in parts.items()}
    return {
        "executors": str(num_executors),
        "prompt tokens": f"{prompt_tokens:,}",
        **formatted(".0f", {**us, "together us": sum(us.values())}),
        "choosing p99": f"{quantile(sorted(choosing.cpu_ms), 0.99) * 1e3:.0f}",
    }


def send_and_end(target: RoutingTarget, prompt: Prompt) -> None:
    target.send(prompt).end()


def cache_bytes() -> float:
    """What one executor's full cache takes in a gateway."""
    tracemalloc.start()
    cache = full_cache(0, 4096)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == NUM_BLOCKS
    return size


def by_load(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget | None:
    """As the gateway, of a prompt that nobody has anything of."""
    return choose(options, Prompt(range(prompt.num_tokens)), num_output_tokens)


def fewest_requests(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget:
    """By the number of requests that have not ended."""
    works = [each.target.work() for each in options]
    num_open = [work.prefill_requests + work.decode_requests for work in works]
    return options[num_open.index(min(num_open))].target


def prefixed_requests(rate: float, duration_s: float) -> list[TraceRequest]:
    """Their prompts begin with one of the prefixes, chosen by 1 / rank."""
    rng = random.Random(SEED)
    requests = poisson(rate, duration_s, rng, exponential(OWN_TOKENS), exponential(OUTPUT_TOKENS))
    weights = [1 / rank for rank in range(1, NUM_PREFIXES + 1)]
    numbers = rng.choices(range(NUM_PREFIXES), weights, k=len(requests))
    return [with_prefix(each, number, PREFIX_TOKENS) for each, number in zip(requests, numbers, strict=True)]


def online_rows(duration_s: float) -> Iterator[Row]:
    for size, rate in product(SIZES, RATES):
        load = Load(prefixed_requests(rate * size, duration_s), [], duration_s)
        bench, turns = Bench(replace(MACHINE, executors=size), load), count()
        ways: dict[str, Choose] = {
            "predicted load and prefixes": choose,
            "predicted load": by_load,
            "fewest requests": fewest_requests,
            "round-robin": lambda options, *_, turns=turns: options[next(turns) % len(options)].target,
        }
        for name, way in ways.items():
            run = bench.run(replace(ONLINE_ONLY, choose=way))
            ttft = {"TTFT mean ms": "ttft_mean", "p50": "ttft_p50", "p99": "ttft_p99"}
            finished = [each.finished_online for each in run.executors]
            yield {
                "executors": str(size),
                "req/s each": f"{rate:g}",
                "routing": name,
                "hit rate": f"{run.cached_share:.1%}",
                **formatted(",.0f", {heading: run.latency_ms(metric) for heading, metric in ttft.items()}),
                "most on one": f"{max(finished) / sum(finished):.0%}",
            }


def backlog_rows(num_groups: int) -> Iterator[Row]:
    """With and without the order's knowing who took what."""
    prompts = [
        OfflinePrompt(LINE_OUTPUT_TOKENS, body={"prompt": [group] * GROUP_TOKENS + [10_000 + number] * LINE_TOKENS})
        for group, number in product(range(num_groups), range(GROUP_SIZE))
    ]
    take = FairShare.take
    ways = {"keep to groups": take, "take what is next": lambda share, request_id, reader: take(share, request_id)}
    for size, (name, way) in product((1, *SIZES), ways.items()):
        if size > 1 or way is take:
            with patch.object(FairShare, "take", way):
                run = Bench(replace(MACHINE, executors=size), Load([], prompts, LONGEST_S)).run(HYGEN, BUDGET_MS)
            assert run.offline is not None and run.offline.exhausted
            yield {
                "executors": str(size),
                "each is to": name if size > 1 else "",
                "hit rate": f"{run.cached_share:.1%}",
                "seconds for the batch": f"{run.offline.elapsed_s:.1f}",
            }


@benchmark
def main(
    rounds: Annotated[int, typer.Option(help="Decisions of each kind.")] = 500,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals, in virtual time.")] = 60.0,
    groups: Annotated[int, typer.Option(help=f"Of {GROUP_SIZE} offline requests that share a prefix.")] = 60,
    only: Annotated[str | None, typer.Option(help="costs, online or batch.")] = None,
) -> Results:
    if only in (None, "costs"):
        for num_executors, prompt_tokens in product((1, 2, 8, 64), (128, 1024, 8192)):
            yield decision_row(num_executors, prompt_tokens, rounds)
        yield f"a full cache: {cache_bytes() / 2**20:.1f} MiB an executor"
    if only in (None, "online"):
        yield from online_rows(duration)
    if only in (None, "batch"):
        yield from backlog_rows(groups)
