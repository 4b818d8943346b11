"""What it costs that a message is on the disk before it is acknowledged: ``python -m benchmarks.bus.durability``.

Two nats-servers, one that syncs always, as ``slackwater up`` starts it, and one as it is by default, every two minutes.
They are given the same in turns: results as an executor stores them, and groups of requests as a batch is read in.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from benchmarks.harness.command import Results, benchmark
from benchmarks.harness.stack import stack
from benchmarks.harness.turns import in_turns
from services.executor.results import ResultStore
from services.offline_queue.batches.ingest import GROUP_LINES
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.scheduling.request import Kind

WORK = subjects.of_model("m")  # what is stored is of this model

PROMPT_TOKENS, OUTPUT_TOKENS = 500, 128
DRAIN_S = 60.0

Work = Callable[[Bus, list[str]], Coroutine[Any, Any, None]]


async def store_results(bus: Bus, request_ids: list[str]) -> None:
    store = ResultStore(bus, WORK)
    for request_id in request_ids:
        store.put(OfflineResult(request_id, list(range(OUTPUT_TOKENS)), FinishReason.LENGTH))
    await store.drain(DRAIN_S)


async def store_requests(bus: Bus, request_ids: list[str]) -> None:
    for start in range(0, len(request_ids), GROUP_LINES):
        group = request_ids[start : start + GROUP_LINES]
        await bus.store_many([(WORK.request(each), request_of(each)) for each in group])


def request_of(request_id: str) -> OfflineRequest:
    prompt = list(range(PROMPT_TOKENS))
    generate = GenerateRequest(request_id, Kind.OFFLINE, prompt, SamplingParams(max_tokens=OUTPUT_TOKENS), 0.0)
    return OfflineRequest(generate, "batch", 1, request_id, "model")


def per_second(work: Work, messages: int, turns: int) -> list[float]:
    """Messages, at a server that syncs always and at one that does not; the medians."""
    numbers = count()
    with stack() as always, stack("2m") as seldom, asyncio.Runner() as runner:

        async def connect(url: str) -> Bus:
            bus = await Bus.connect(url, "bench")
            await bus.ensure_streams()
            return bus

        def step(bus: Bus) -> None:
            runner.run(work(bus, [f"batch.{next(numbers)}" for _ in range(messages)]))

        buses = [runner.run(connect(each.nats_url)) for each in (always, seldom)]
        times = in_turns([lambda bus=bus: step(bus) for bus in buses], turns)  # type: ignore[misc]
        for bus in buses:
            runner.run(bus.close())
    return [messages / each.median_ms * 1e3 for each in times]


@benchmark
def measure(messages: int = 1024, turns: int = 10) -> Results:
    """``messages``: stored in each of the turns."""
    for what, work in (("results", store_results), ("requests", store_requests)):
        always, seldom = per_second(work, messages, turns)
        yield {
            "messages": what,
            "synced always, 1/s": f"{always:,.0f}",
            "every two minutes, 1/s": f"{seldom:,.0f}",
            "ratio": f"{always / seldom:.2f}",
        }
