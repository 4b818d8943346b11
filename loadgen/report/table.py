"""A report as tables for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.report.metrics import LATENCIES
from loadgen.report.report import OfflineReport, OnlineReport, Ratios, Report, SloReport, Summary

THROUGHPUT = {
    "online": ("requests", "errors", "output_tokens_per_s"),
    "offline": ("completed", "errors", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s"),
}
STATISTICS = ("mean", "p50", "p90", "p99")
NAMES = {
    "ttft_ms": "TTFT ms",
    "tbt_ms": "TBT ms",
    "tpot_ms": "TPOT ms",
    "normalized_latency_ms": "normalized latency ms",
}


def print_report(console: Console, report: Report) -> None:
    """The whole report: facts, latencies, throughput, SLOs, notes."""
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> Iterator[RenderableType]:
    run = report.run
    partial = " (partial)" if report.partial else ""
    yield Text(f"{run.model} at {run.url}, {run.date}{partial}")
    window = f"{run.duration_s:g} s from {run.start_s:g} s, seed {run.seed}, prompts as {run.prompt_form}"
    yield Text(f"online: {run.trace or 'none'}; offline: {run.prompts or 'none'}; {window}")
    if report.online or (report.baseline and report.baseline.online):
        yield latency_table(report)
    throughput = throughput_table(report)
    if throughput.row_count:
        yield throughput
    if report.slo:
        yield slo_table(report.slo)
    for note in report.notes:
        yield Text(f"note: {note}")


def latency_table(report: Report) -> Table:
    """Online latencies; with a baseline its figures and the ratio below each."""
    table = _table("online latency", *STATISTICS)
    baseline = report.baseline.online if report.baseline else None
    for name in LATENCIES:
        table.add_row(NAMES[name], *_figures(getattr(report.online, name) if report.online else None))
        if baseline:
            table.add_row("  online only", *_figures(getattr(baseline, name)), style="dim")
        if report.interference:
            table.add_row("  ratio", *_figures(getattr(report.interference, name), "x"), style="dim")
    return table


def throughput_table(report: Report) -> Table:
    """Requests and tokens per second; with a baseline the runs side by side."""
    baseline = report.baseline
    table = _table("throughput", "together", *(["alone"] if baseline else []))
    for side, fields in THROUGHPUT.items():
        columns = [getattr(run, side) for run in (report, baseline) if run]
        for field in fields if any(columns) else ():
            name = field.replace("_per_s", "/s").replace("_", " ")
            table.add_row(f"{side} {name}", *(_cell(column, field) for column in columns))
    if baseline:
        table.add_row("idle share online only", "", _number(baseline.idle_share))
        table.add_row("harvest", _number(report.harvest))
    return table


def slo_table(slos: list[SloReport]) -> Table:
    """Each SLO with what was measured."""
    table = _table("SLO", "bound ms", "measured ms", "within", "met")
    for slo in slos:
        within = "-" if slo.attainment is None else f"{slo.attainment:.1%}"
        table.add_row(slo.expr, _number(slo.bound), _number(slo.value), within, "yes" if slo.met else "NO")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _figures(summary: Summary | Ratios | None, unit: str = "") -> list[str]:
    values = [getattr(summary, name) if summary else None for name in STATISTICS]
    return [_number(value) + (unit if value is not None else "") for value in values]


def _cell(side: OnlineReport | OfflineReport | None, field: str) -> str:
    value: int | float | None = getattr(side, field) if side else None
    return str(value) if isinstance(value, int) else _number(value)


def _number(value: float | None) -> str:
    """Three digits that matter below 100, whole numbers above."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
