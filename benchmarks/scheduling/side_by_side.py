"""Stacks of which each has options of its own. All run at once and are measured in turns, so that all of them meet the
same disturbances."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from benchmarks.harness.local_stack import local_stack
from loadgen.client.openai_client import OpenAIClient
from loadgen.progress import NoProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.report import Report

OFFLINE_QUEUE = "offline-queue"
TIMEOUT_S = 600.0  # of an answer

Options = Mapping[str, object]
Result = TypeVar("Result")


@dataclass(slots=True)
class Measured(Generic[Result]):
    """Of one stack, one entry a turn; ``details``: what its offline-queue tells of itself after the last."""

    results: list[Result] = field(default_factory=list)
    counts: list[Mapping[str, int]] = field(default_factory=list)
    details: Mapping[str, Any] = field(default_factory=dict)

    def count(self, name: str) -> int:
        """Of the executor's counters, over all turns."""
        return sum(each[name] for each in self.counts)

    @property
    def found_share(self) -> float:
        """Of the prompts' tokens, those that were in the prefix cache."""
        found = self.count("cached_tokens")
        return found / max(1, found + self.count("prompt_tokens"))


async def measured(
    stacks: Mapping[str, Options], turns: int, folder: Path, measure: Callable[[str, int], Awaitable[Result]]
) -> dict[str, Measured[Result]]:
    """By the names of the stacks; in each turn another one is first. ``measure`` is given a stack's URL and the number
    of the turn. Raises ServerError where a stack does not start."""
    made: dict[str, Measured[Result]] = {name: Measured() for name in stacks}
    async with AsyncExitStack() as started:
        urls = {}
        for number, (name, options) in enumerate(stacks.items()):
            (own := folder / str(number)).mkdir()
            data_dir = await started.enter_async_context(local_stack(name, own, options))
            urls[name] = data_dir.read_stack().http_url
        names = list(stacks)
        for turn in range(turns):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                before = counters(urls[name])
                made[name].results.append(await measure(urls[name], turn))
                after = counters(urls[name])
                made[name].counts.append({each: after[each] - before[each] for each in after})
        for name, url in urls.items():
            (made[name].details,) = [each["details"] for each in _processes(url) if each["name"] == OFFLINE_QUEUE]
    return made


async def report_of(plan: ReplayPlan, url: str) -> Report:
    """Of a replay against one stack. Raises ServerError."""
    async with OpenAIClient(url, TIMEOUT_S) as client:
        replay = Replay(plan, client, NoProgress())
        await replay.prepare_and_run()
    return replay.report(partial=False)


def counters(url: str) -> dict[str, Any]:
    """Of the stack's one executor, at most a second old."""
    (executor,) = _status(url)["executors"]
    counters: dict[str, Any] = executor["counters"]
    return counters


def _processes(url: str) -> list[dict[str, Any]]:
    processes: list[dict[str, Any]] = _status(url)["processes"]
    return processes


def _status(url: str) -> dict[str, Any]:
    status: dict[str, Any] = httpx.get(f"{url}/status", timeout=30.0).raise_for_status().json()["status"]
    return status
