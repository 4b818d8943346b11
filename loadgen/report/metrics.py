"""Figures of a report, from the records of its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from loadgen.client.records import RequestRecord
from loadgen.report.overload import overload
from loadgen.report.report import Interference, OfflineReport, OnlineReport, Ratios, Summary

LATENCIES = ("ttft_ms", "tbt_ms", "tpot_ms", "normalized_latency_ms")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # a Summary's percentiles


@dataclass(frozen=True, slots=True)
class LatencySamples:
    """Milliseconds of each online metric, over the requests that were answered whole."""

    ttft_ms: list[float]
    tbt_ms: list[float]
    tpot_ms: list[float]
    normalized_latency_ms: list[float]

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> LatencySamples:
        """Samples of all requests; one without any token has none."""
        samples = cls([], [], [], [])
        for record in records:
            times_s, num_tokens = record.token_times_s, max(record.num_output_tokens, 1)
            if not record.ok or not times_s:
                continue
            samples.ttft_ms.append((times_s[0] - record.due_s) * 1000)
            samples.tbt_ms.extend([(after_s - before_s) * 1000 for before_s, after_s in pairwise(times_s)])
            if num_tokens > 1:
                samples.tpot_ms.append((times_s[-1] - times_s[0]) / (num_tokens - 1) * 1000)
            samples.normalized_latency_ms.append((times_s[-1] - record.due_s) / num_tokens * 1000)
        return samples


def percentile(ordered: Sequence[float], share: float) -> float:
    """The ``share`` quantile (0 to 1) of sorted samples, linear between the two nearest, as numpy's default."""
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    step = ordered[above] - ordered[below]
    return ordered[below] + step * (position - below)


def summarize(samples: Sequence[float]) -> Summary | None:
    """Mean and percentiles; None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    percentiles = {name: percentile(ordered, share) for name, share in SHARES.items()}
    return Summary(math.fsum(ordered) / len(ordered), **percentiles)


def online_report(records: Sequence[RequestRecord], start_s: float, end_s: float) -> OnlineReport:
    """Online figures. Rates are over the window, or until the last answer where that came later."""
    samples = LatencySamples.of(records)
    completed = [record for record in records if record.ok]
    elapsed_s = max([end_s, *(record.finished_s or 0.0 for record in completed)]) - start_s
    prompts = [record.prompt_tokens for record in completed if record.prompt_tokens is not None]
    return OnlineReport(
        requests=len(records),
        completed=len(completed),
        errors=sum(record.failed for record in records),
        unfinished=sum(record.finished_s is None for record in records),
        ttft_ms=summarize(samples.ttft_ms),
        tbt_ms=summarize(samples.tbt_ms),
        tpot_ms=summarize(samples.tpot_ms),
        normalized_latency_ms=summarize(samples.normalized_latency_ms),
        send_lag_ms=summarize([(r.sent_s - r.due_s) * 1000 for r in records if r.sent_s is not None]),
        requests_per_s=len(completed) / elapsed_s,
        input_tokens_per_s=sum(prompts) / elapsed_s if len(prompts) == len(completed) else None,
        output_tokens_per_s=sum(record.num_output_tokens for record in completed) / elapsed_s,
        under_way_share=under_way_share(records, start_s, end_s),
        overload=overload(records, start_s, end_s),
    )


def under_way_share(records: Sequence[RequestRecord], start_s: float, end_s: float) -> float:
    """The share of the window in which at least one request was sent and not yet answered, 0 to 1: of a server that
    serves nothing else, how long it was busy, the way to it and back included."""
    sent = sorted((record.sent_s, record.finished_s or end_s) for record in records if record.sent_s is not None)
    under_way_s, until_s = 0.0, start_s
    for sent_s, finished_s in sent:
        under_way_s += max(0.0, min(finished_s, end_s) - max(sent_s, until_s))
        until_s = max(until_s, finished_s)
    return under_way_s / (end_s - start_s) if end_s > start_s else 0.0


def interference(online: OnlineReport, baseline: OnlineReport) -> Interference:
    """Each latency figure over the baseline's."""
    return Interference(*(_ratios(getattr(online, name), getattr(baseline, name)) for name in LATENCIES))


def _ratios(figures: Summary | None, baseline: Summary | None) -> Ratios:
    if figures is None or baseline is None:
        return Ratios(None, None, None, None)
    pairs = zip(msgspec.structs.astuple(figures), msgspec.structs.astuple(baseline), strict=True)
    return Ratios(*(ours / theirs if theirs > 0 else None for ours, theirs in pairs))


def harvest(together: OfflineReport, alone: OfflineReport, idle_share: float) -> float | None:
    """How much of the idle capacity the offline work got: its tokens/s beside online work, over its tokens/s alone
    times the idle share. Counts prompt and output tokens, or output alone where prompts are not told."""
    for ours, theirs in (
        (together.total_tokens_per_s, alone.total_tokens_per_s),
        (together.output_tokens_per_s, alone.output_tokens_per_s),
    ):
        if ours is not None and theirs is not None and theirs * idle_share > 0:
            return ours / (theirs * idle_share)
    return None
