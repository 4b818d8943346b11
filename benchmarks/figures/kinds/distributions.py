"""How latencies of online requests are distributed, and at which rate they are as they should be without offline work
(Echo figure 7)."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from benchmarks.figures.backlog_lab import CHOSEN_ON, SHOWN_ON, Backlog, BacklogLab, Online
from benchmarks.figures.kinds.speedups import slo_text
from benchmarks.harness.charts import Curve, Curves, Panel, Point, Style, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import ONLINE_ONLY, System
from benchmarks.lab.recording import Recording
from loadgen.report.metrics import LatencySamples, summarize
from shared.pictures import BLUE, GREY, ORANGE
from shared.scheduling.packing.deadlines.token_slo import TokenSlo

POINTS, LONGEST_SLOS = 200, 1.5  # of a curve: how many, and to how many times the bound
ALONE = "online alone"
ATTAINED = "online requests within the SLO (%)"
PARTS = {"chosen on": CHOSEN_ON, "shown on": SHOWN_ON}
STYLES: dict[str, Style] = {"chosen on": ("s-", ORANGE), "shown on": ("o-", BLUE)}


def distributions(
    lab: BacklogLab,
    online: Online,
    backlog: Backlog,
    systems: Mapping[str, System],
    colours: Sequence[str],
    slo: TokenSlo,
) -> Result:
    """TTFT and mean TPOT, as the share of requests that take so long at most."""
    bench, rows = lab.bench(online, backlog), []
    curves: dict[str, list[Curve]] = {"ttft_ms": [], "tpot_ms": []}
    bounds = {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms}
    for (name, system), colour in zip({**systems, ALONE: ONLINE_ONLY}.items(), (*colours, GREY), strict=True):
        recording = bench.record(system).after(lab.warm_up_s(backlog))
        samples = LatencySamples.of(recording.records)
        for metric, drawn in curves.items():
            drawn.append(_shares(name, getattr(samples, metric), LONGEST_SLOS * bounds[metric], colour))
        rows.append({"system": name, **_cells(samples, recording, slo)})
    titles = {"ttft_ms": "TTFT (ms)", "tpot_ms": "mean TPOT of a request (ms)"}
    panels = [
        Panel([*drawn, Curve("SLO", [bounds[metric]] * 2, [0, 100], GREY, "--")], titles[metric], "requests (%)")
        for metric, drawn in curves.items()
    ]
    caption = f"{slo_text(slo)} Beside {backlog.name}. {lab.where(online, backlog)}."
    return Result([Table(caption, rows)], draw([panels], 3.0))


def _shares(name: str, samples: Sequence[float], longest_ms: float, colour: str) -> Curve:
    ordered = sorted(samples)
    xs = [longest_ms * number / POINTS for number in range(POINTS + 1)]
    return Curve(name, xs, [100 * bisect_right(ordered, x) / max(1, len(ordered)) for x in xs], colour, "-")


def _cells(samples: LatencySamples, recording: Recording, slo: TokenSlo) -> Row:
    cells: dict[str, str] = {"online requests": f"{len(recording.records):,}"}
    for label, own in (("TTFT", samples.ttft_ms), ("TPOT", samples.tpot_ms)):
        if summary := summarize(own):
            figures = {f"{label} p50 ms": summary.p50, "p90": summary.p90, "p99": summary.p99}
            cells |= formatted(",.0f", {key if label in key else f"{label} {key}": v for key, v in figures.items()})
    return {**cells, "SLO attained": f"{recording.attained(slo):.1%}"}


def rates_alone(lab: BacklogLab, online: Online, rates: Sequence[float], slo: TokenSlo) -> Result:
    """What online requests attain by themselves at growing rates, on the part of the trace that the rate of the other
    figures was chosen on, and on the one that they show."""
    points = []
    for rate in rates:
        for name, part in PARTS.items():
            recording = lab.bench(online, None, part, rate).record(ONLINE_ONLY).after(lab.warm_up_s(None))
            most = max(moment.owners.online for moment in recording.moments)
            held = most / sum(_blocks(recording))
            cells = {
                "requests/s": f"{rate:g}",
                "part of the trace": name,
                **_cells(LatencySamples.of(recording.records), recording, slo),
                "KV held, most": f"{held:.0%}",
            }
            attained = {ATTAINED: 100 * recording.attained(slo), "KV held by online requests, most (%)": 100 * held}
            points.append(Point("", "", name, rate, attained, cells))
    caption = f"Online requests alone. {slo_text(slo)} {lab.where(online)}, and other rates."
    return Curves("online requests/s", STYLES).result(points, caption, 3.0)


def _blocks(recording: Recording) -> Sequence[int]:
    """By owner."""
    owners = recording.moments[-1].owners
    return owners.online, owners.shared, owners.offline, owners.paused, owners.cached, owners.empty
