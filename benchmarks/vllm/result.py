"""The comparison's tables and its picture: what each run costs online work, over what offline work got."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.harness.charts import BLUE, GREEN, GREY, ORANGE, PINK, Curve, Panel, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Page, Result
from benchmarks.vllm.comparison import Cell, CoRun
from benchmarks.vllm.workload import Setting
from loadgen.report.metrics import harvest, interference
from loadgen.report.report import Summary
from loadgen.report.slo import Slo, parse_slo

PAGE = Page("vllm_side_by_side", "Side by side with vLLM")
NAME = "side-by-side"
VLLM = ("vllm-priority", "vllm-plain")
COLOURS = {"vllm-priority": ORANGE, "vllm-plain": PINK, "slackwater-vllm": BLUE, "slackwater-torch": GREEN}
RATIOS = "of online only: TTFT mean / p99, TBT mean / p99"


def result_of(cells: Sequence[Cell], setting: Setting, date: str) -> Result:
    """``cells``: those done so far, at least one."""
    ordered = sorted(cells, key=lambda cell: cell.share)
    runs = [(cell, run) for cell in ordered for run in sorted(cell.runs, key=lambda run: run.values)]
    caption = (
        f"The most offline tokens/s of the runs that kept {' and '.join(setting.slos)}, on {date}. "
        f"{setting.describe()}. Offline tokens are prompt and output."
    )
    tables = [
        Table(caption, [_best(cell, _vllm(cells, cell.share)) for cell in ordered]),
        Table("Each kind of work alone.", [_alone(cell) for cell in ordered]),
        Table("All runs of both kinds of work together.", [_run(cell, run) for cell, run in runs]),
    ]
    return Result(tables, picture_of(ordered, setting.slos))


def _best(cell: Cell, vllm: float) -> Row:
    """Where no run kept the SLOs there was no offline work. ``vllm``: offline tokens/s of its best under the load."""
    run = cell.best
    offline = run.trial.offline_tokens_per_s if run else 0.0
    return {
        **_load(cell),
        "best setting": _setting(cell, run) if run else "none kept them",
        "TTFT ms mean / p99": _pair(run.online.ttft_ms) if run else "",
        "TBT ms mean / p99": _pair(run.online.tbt_ms) if run else "",
        RATIOS: _ratios(cell, run) if run else "",
        **_offline(run),
        "harvest": _harvest(cell, run) if run else "0",
        "times vLLM's best": f"{offline / vllm:.2f}" if vllm else "-",
    }


def _alone(cell: Cell) -> Row:
    online, offline = cell.alone, cell.offline_alone
    return {
        **_load(cell),
        "requests/s": f"{cell.rate:g}",
        "requests": str(online.requests),
        "busy": f"{online.under_way_share or 0:.0%}",
        "TTFT ms mean / p99": _pair(online.ttft_ms),
        "TBT ms mean / p99": _pair(online.tbt_ms),
        "offline only, tokens/s": f"{offline.total_tokens_per_s or 0:.1f}",
        "output tokens/s": f"{offline.output_tokens_per_s or 0:.1f}",
    }


def _run(cell: Cell, run: CoRun) -> Row:
    reached = {"setting": _setting(cell, run), RATIOS: _ratios(cell, run), "SLOs": ("broken", "kept")[run.trial.met]}
    return {**_load(cell), **reached, **_offline(run)}


def _load(cell: Cell) -> Row:
    return {"online load": f"{cell.share:.0%}", "system": cell.system}


def _offline(run: CoRun | None) -> Row:
    return {
        "offline tokens/s": f"{run.trial.offline_tokens_per_s:.1f}" if run else "0",
        "output tokens/s": f"{run.trial.offline_output_tokens_per_s:.1f}" if run else "0",
    }


def _setting(cell: Cell, run: CoRun) -> str:
    return ", ".join(f"{knob}: {value:g}" for knob, value in zip(cell.knobs, run.values, strict=True))


def _ratios(cell: Cell, run: CoRun) -> str:
    """Mean and p99 of TTFT, then of TBT."""
    ratios = interference(run.online, cell.alone)
    return ", ".join(f"{each.mean or 0:.2f} / {each.p99 or 0:.2f}" for each in (ratios.ttft_ms, ratios.tbt_ms))


def _harvest(cell: Cell, run: CoRun) -> str:
    harvested = harvest(run.offline, cell.offline_alone, 1 - (cell.alone.under_way_share or 0.0))
    return "-" if harvested is None else f"{harvested:.2f}"


def _vllm(cells: Sequence[Cell], share: float) -> float:
    rivals = [cell.best for cell in cells if cell.share == share and cell.system in VLLM]
    return max((run.trial.offline_tokens_per_s for run in rivals if run), default=0.0)


def _pair(summary: Summary | None) -> str:
    return "-" if summary is None else f"{summary.mean:.1f} / {summary.p99:.0f}"


def picture_of(cells: Sequence[Cell], exprs: Sequence[str]) -> Figure:
    """A row for each SLO, a column for each load, a line for each system with a point for each run; the best of the
    runs that kept all SLOs is filled."""
    shares = sorted({cell.share for cell in cells})
    panels = [
        [_panel([cell for cell in cells if cell.share == share], slo, share == shares[0]) for share in shares]
        for slo in map(parse_slo, exprs)
    ]
    return draw(panels, 2.6 * len(panels), "offline tokens/s")


def _panel(cells: Sequence[Cell], slo: Slo, is_first: bool) -> Panel:
    curves = [curve for cell in cells for curve in _curves(cell, slo)]
    if slo.relative:
        most = max((x for curve in curves for x in curve.xs), default=1.0)
        curves.append(Curve("", [0.0, most], [slo.limit] * 2, GREY, "--"))
    ylabel = f"{slo.metric.removesuffix('_ms').upper()} {slo.statistic} (times online only)"
    title = f"{cells[0].share:.0%} busy with online work"
    return Panel(curves, title, ylabel=ylabel if is_first else "", from_zero=False)


def _curves(cell: Cell, slo: Slo) -> list[Curve]:
    alone_ms = slo.value_ms(cell.alone)
    if not alone_ms:
        return []

    def curve(label: str, runs: Sequence[CoRun], fill: str | None) -> Curve:
        ratios = [(slo.value_ms(run.online) or 0.0) / alone_ms for run in runs]
        colour = COLOURS.get(cell.system, GREY)
        xs = [run.trial.offline_tokens_per_s for run in runs]
        return Curve(label, [0.0, *xs] if label else xs, [1.0, *ratios] if label else ratios, colour, "o-", fill)

    line = curve(cell.system, sorted(cell.runs, key=lambda run: run.trial.offline_tokens_per_s), "white")
    return [line] if cell.best is None else [curve("", [cell.best], None), line]
