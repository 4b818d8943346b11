"""What the server's executors have counted, from its Prometheus metrics."""

import re
import time
from dataclasses import dataclass

from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError

BUSY_METRIC = "slackwater_executor_busy_seconds_total"
GENERATED_METRIC = "slackwater_executor_offline_tokens_total"


@dataclass(frozen=True, slots=True)
class Reading:
    """A counter of each executor, by its label set, at one time."""

    time_s: float
    values: dict[str, float]


async def read_counter(client: OpenAIClient, metric: str) -> Reading | None:
    """The counters now; None where the server has none."""
    asked_s = time.perf_counter()
    try:
        text = (await client.get_bytes("/metrics")).decode("utf-8", "replace")
    except ServerError:
        return None
    return parse_counter(text, metric, (asked_s + time.perf_counter()) / 2)


def parse_counter(text: str, metric: str, time_s: float) -> Reading | None:
    """The counters in a Prometheus text page; None where there are none."""
    samples = re.finditer(rf"^{re.escape(metric)}(\{{[^}}]*\}})?\s+(\S+)", text, re.MULTILINE)
    values = {match[1] or "": float(match[2]) for match in samples}
    return Reading(time_s, values) if values else None


def gained(before: Reading | None, after: Reading | None) -> list[float] | None:
    """Of each executor between two readings; None without both, or when an executor came or restarted in between."""
    if before is None or after is None or after.time_s <= before.time_s or before.values.keys() != after.values.keys():
        return None
    gains = [after.values[executor] - before.values[executor] for executor in before.values]
    return None if min(gains) < 0 else gains


def idle_share(before: Reading | None, after: Reading | None) -> float | None:
    """The share of the time between two readings of BUSY_METRIC that the executors idled, mean over them, 0 to 1."""
    gains_s = gained(before, after)
    if gains_s is None or before is None or after is None:
        return None
    busy_share = sum(gains_s) / len(gains_s) / (after.time_s - before.time_s)
    return max(0.0, 1.0 - busy_share)
