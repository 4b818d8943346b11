"""A report out of what the phases of a run measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from loadgen.client.counters import BUSY_METRIC
from loadgen.client.records import RequestRecord
from loadgen.report.metrics import LatencySamples, harvest, interference
from loadgen.report.report import Baseline, OfflineReport, OnlineReport, Report, RunFacts
from loadgen.report.slo import Slo

SIMULATED = "sim:"  # what the URL of a simulated run begins with
KEPT_SHARE = 0.9  # of what can be done; with less room latencies are long anyway
ONLINE_ONLY, OFFLINE_ONLY, TOGETHER = "online only", "offline only", "replay"
MAX_SEND_LAG_MS = 20.0  # later than this at p99, the bursts that were sent are no longer the trace's


@dataclass(frozen=True, slots=True)
class PhaseOutcome:
    """One phase; ``records`` are those of its online requests, ``idle_share`` is None where it is not known.
    ``window``: from when to when, in seconds of ``time.perf_counter``; None where it did not begin, or is simulated."""

    online: OnlineReport | None = None
    offline: OfflineReport | None = None
    records: Sequence[RequestRecord] = ()
    idle_share: float | None = None
    window: tuple[float, float] | None = None


def compose(
    facts: RunFacts,
    phases: Mapping[str, PhaseOutcome],
    slos: Sequence[Slo],
    baseline: bool,
    partial: bool,
    notes: Sequence[str],
) -> Report:
    """``phases``: those that ran, by ONLINE_ONLY, OFFLINE_ONLY, TOGETHER; ``baseline``: the first two are wanted."""
    online_only, offline_only, together = (
        phases.get(name, PhaseOutcome()) for name in (ONLINE_ONLY, OFFLINE_ONLY, TOGETHER)
    )
    online, offline = together.online, together.offline
    alone = Baseline(online_only.online, offline_only.offline, online_only.idle_share) if baseline else None
    ratios = interference(online, alone.online) if online and alone and alone.online else None
    harvested = None
    if offline and alone and alone.offline and alone.idle_share is not None:
        harvested = harvest(offline, alone.offline, alone.idle_share)
    judged = []
    if online:
        samples = LatencySamples.of(together.records)
        judged = [slo.judge(online, samples, alone.online if alone else None) for slo in slos]
    report = Report(facts, online, offline, alone, ratios, harvested, judged, partial, [])
    return msgspec.structs.replace(report, notes=[*notes, *reservations(report)])


def reservations(report: Report) -> list[str]:
    """One sentence for each thing that limits what the report says."""
    notes = [*_overloads(report)]
    if report.slo and report.online and report.online.errors:
        share = f"{report.online.errors} of {report.online.requests}"
        notes.append(f"{share} online requests failed: for the SLOs they are infinitely late")
    for prefix, online in _online_runs(report):
        lag = online.send_lag_ms
        if lag and lag.p99 > MAX_SEND_LAG_MS:
            late = f"1% of the requests left over {lag.p99:.0f} ms after their time"
            notes.append(f"{prefix}the load generator was late: {late}")
    baseline = report.baseline
    for name, offline in (("replay", report.offline), ("offline only", baseline and baseline.offline)):
        if offline and offline.exhausted:
            notes.append(f"{name}: the backlog ran out after {offline.elapsed_s:.1f} s, which its rates are over")
    if report.harvest is None and baseline and report.offline:
        notes.append(f"no harvest: {_missing(baseline)}")
    return notes


def _overloads(report: Report) -> Iterator[str]:
    """Latencies of such a run say how long it was, and nothing else."""
    for name, online in _online_runs(report):
        if online.overload is not None and online.ttft_ms is not None:
            who = "this device" if report.run.url.startswith(SIMULATED) else "this server"
            excess = f"the trace brings {online.overload:.2g} times what {who} can do"
            less = _less(report.run, KEPT_SHARE / online.overload)
            yield (
                f"{name}overloaded: mean TTFT {online.ttft_ms.mean / 1e3:.3g} s: {excess}, and latencies grow as long "
                f"as it lasts; send less ({less}), or have more executors"
            )


def _online_runs(report: Report) -> Iterator[tuple[str, OnlineReport]]:
    """With what stands before a note about it."""
    if report.online is not None:
        yield "", report.online
    if report.baseline is not None and report.baseline.online is not None:
        yield f"{ONLINE_ONLY}: ", report.baseline.online


def _less(run: RunFacts, share: float) -> str:
    """The option that brings such a share of the load."""
    if run.qps is not None:
        return f"--qps {run.qps * share:.2g}"
    return f"--rate-scale {(run.rate_scale or 1.0) * share:.2g}"


def _missing(baseline: Baseline) -> str:
    if baseline.offline is None:
        return "the offline-only run is missing"
    if baseline.idle_share is None:
        return f"the server's /metrics has no steady {BUSY_METRIC}"
    if baseline.idle_share == 0.0:
        return "the online-only run left no idle time"
    if baseline.offline.total_tokens_per_s == 0.0:
        return "no offline request ended within the offline-only run"
    return "token counts are missing"
