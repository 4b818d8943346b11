"""What a reader of a report should know before trusting its figures."""

from __future__ import annotations

from loadgen.client.counters import BUSY_METRIC
from loadgen.report.report import Report

MAX_SEND_LAG_MS = 20.0  # later than this at p99, the bursts that were sent are no longer the trace's


def reservations(report: Report) -> list[str]:
    """One sentence for each thing that limits what the report says."""
    notes = []
    lag = report.online and report.online.send_lag_ms
    if lag and lag.p99 > MAX_SEND_LAG_MS:
        notes.append(f"the load generator was late: 1% of the requests left over {lag.p99:.0f} ms after their time")
    baseline = report.baseline
    for name, offline in (("replay", report.offline), ("offline only", baseline and baseline.offline)):
        if offline and offline.exhausted:
            notes.append(f"{name}: the backlog ran out after {offline.elapsed_s:.1f} s, which its rates are over")
    if report.harvest is None and baseline and report.offline:
        notes.append(f"no harvest: {_missing(report)}")
    return notes


def _missing(report: Report) -> str:
    baseline = report.baseline
    if baseline is None or baseline.offline is None:
        return "the offline-only run is missing"
    if baseline.idle_share is None:
        return f"the server's /metrics has no steady {BUSY_METRIC}"
    return "the online-only run left no idle time, or token counts are missing"
