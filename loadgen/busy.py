"""How long the server's executors have been busy, from its Prometheus metrics."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from loadgen.client import OpenAIClient
from loadgen.errors import ServerError

BUSY_METRIC = "slackwater_executor_busy_seconds_total"

_SAMPLE = re.compile(rf"^{BUSY_METRIC}(\{{[^}}]*\}})?\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BusyReading:
    """Busy seconds of each executor, by its label set, at one time."""

    time_s: float
    busy_s: dict[str, float]


async def read_busy(client: OpenAIClient) -> BusyReading | None:
    """The counters now; None where the server has none."""
    asked_s = time.perf_counter()
    try:
        text = (await client.get_bytes("/metrics")).decode("utf-8", "replace")
    except ServerError:
        return None
    return parse_busy(text, (asked_s + time.perf_counter()) / 2)


def parse_busy(text: str, time_s: float) -> BusyReading | None:
    """The counters in a Prometheus text page; None where there are none."""
    busy_s = {match[1] or "": float(match[2]) for match in _SAMPLE.finditer(text)}
    return BusyReading(time_s, busy_s) if busy_s else None


def idle_share(before: BusyReading | None, after: BusyReading | None) -> float | None:
    """The share of the time between two readings in which the executors idled, mean over them, 0 to 1.

    None without two readings, or when an executor came or restarted in between (its counter fell).
    """
    if before is None or after is None or after.time_s <= before.time_s or before.busy_s.keys() != after.busy_s.keys():
        return None
    gained_s = [after.busy_s[executor] - before.busy_s[executor] for executor in before.busy_s]
    if min(gained_s) < 0:
        return None
    busy_share = sum(gained_s) / len(gained_s) / (after.time_s - before.time_s)
    return min(1.0, max(0.0, 1.0 - busy_share))
