"""The comparison's tables and its picture: what each run costs online work, over what offline work got."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from statistics import median

from matplotlib.figure import Figure

from benchmarks.harness.charts import Curves, Panel, Point, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Page, Result
from benchmarks.harness.tries import MAX_TRIES
from benchmarks.vllm.comparison import Cell, CoRun
from benchmarks.vllm.run_store import FailedTry
from benchmarks.vllm.workload import Setting
from loadgen.report.metrics import harvest, interference
from loadgen.report.report import OnlineReport, Summary
from loadgen.report.slo import Slo, parse_slo
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW

PAGE = Page("vllm_side_by_side", "Side by side with vLLM")
NAME = "side-by-side"
VLLM = ("vllm-priority", "vllm-plain")
COLOURS = {"vllm-priority": ORANGE, "vllm-plain": PINK, "slackwater-vllm": BLUE, "slackwater-torch": GREEN}
OTHER_COLOURS = (SKY, YELLOW, GREY)  # of vLLM with steps of other sizes
BEST = "the best that kept the SLOs"
RATIOS = "of online only: TTFT mean / p99, TBT mean / p99"


def result_of(cells: Sequence[Cell], setting: Setting, failures: Sequence[FailedTry] = ()) -> Result:
    """``cells``: those done so far, at least one; ``failures``: tries of runs in which online requests failed."""
    ordered = sorted(cells, key=lambda cell: cell.share)
    runs = [(cell, run) for cell in ordered for run in sorted(cell.runs, key=lambda run: run.value or 0.0)]
    caption = (
        f"The most offline tokens/s that kept {' and '.join(setting.slos)}; of a system without a knob "
        f"the mean of its runs. {setting.describe()}. Offline tokens are prompt and output."
    )
    tables = [
        Table(caption, [_best(cell, _first_of(ordered, cell.share), _vllm(cells, cell.share)) for cell in ordered]),
        Table(
            "Each kind of work alone: of several runs the mean; TBT means, and ratios to the first system's run of the "
            "same turn: the median, the least and the most.",
            [_alone(cell, _first_of(ordered, cell.share)) for cell in ordered],
        ),
        Table("All runs of both kinds of work together.", [_run(cell, run) for cell, run in runs]),
    ]
    if failures:
        caption = (
            f"Runs in which online requests failed. Such a run is made again; try {MAX_TRIES} counts as it is, and "
            "beside offline work keeps no SLO."
        )
        tables.append(Table(caption, [_failed(each) for each in failures]))
    return Result(tables, picture_of(ordered, setting.slos))


def _best(cell: Cell, first: Cell, vllm: float) -> Row:
    """Where no run kept the SLOs there was no offline work. ``first``: whose online work alone is another measure;
    ``vllm``: offline tokens/s of its best under the load."""
    run = cell.best
    offline = run.trial.offline_tokens_per_s if run else 0.0
    return {
        **_load(cell),
        "best setting": _setting(cell, run) if run else _none_kept(cell),
        "TTFT ms mean / p99": _pair(run.online.ttft_ms) if run else "",
        "TBT ms mean / p99": _pair(run.online.tbt_ms) if run else "",
        RATIOS: _ratios(run.online, run.alone) if run else "",
        f"of {first.system}, online only": _ratios(run.online, first.alone) if run else "",
        **_offline(run),
        "harvest": _harvest(cell, run) if run else "0",
        "beside online work, at least": f"{_co_batched(cell, run):.1f}" if run else "0",
        "times vLLM's best": f"{offline / vllm:.2f}" if vllm else "-",
    }


def _alone(cell: Cell, first: Cell) -> Row:
    """``first``: the cell of the same load that others are compared with."""
    online, offline = cell.alone, cell.offline_alone
    turns = [interference(run, of) for run, of in zip(cell.alone_runs, first.alone_runs, strict=True)]
    return {
        **_load(cell),
        "requests/s": f"{cell.rate:g}",
        "requests": f"{online.requests}, {online.errors} failed" if online.errors else str(online.requests),
        "busy": f"{online.under_way_share or 0:.0%}",
        "TTFT ms mean / p99": _pair(online.ttft_ms),
        "TBT ms mean / p99": _pair(online.tbt_ms),
        "TBT means": _spread([run.tbt_ms.mean for run in cell.alone_runs if run.tbt_ms], "{:.1f}"),
        f"of {first.system}: TTFT p99": _spread([turn.ttft_ms.p99 or 0.0 for turn in turns]),
        "TBT mean": _spread([turn.tbt_ms.mean or 0.0 for turn in turns]),
        "offline only, tokens/s": f"{offline.total_tokens_per_s or 0:.1f}",
        "output tokens/s": f"{offline.output_tokens_per_s or 0:.1f}",
    }


def _failed(failure: FailedTry) -> Row:
    words = " ".join(failure.what_failed.replace("|", "/").split())
    return {"system": failure.system, "run": failure.run, "try": str(failure.attempt), "what failed": words}


def _first_of(cells: Sequence[Cell], share: float) -> Cell:
    return next(cell for cell in cells if cell.share == share)


def _run(cell: Cell, run: CoRun) -> Row:
    reached = {
        "setting": _setting(cell, run),
        RATIOS: _ratios(run.online, run.alone),
        "SLOs": "kept" if run.trial.met else _broken(run),
    }
    return {**_load(cell), **reached, **_offline(run)}


def _none_kept(cell: Cell) -> str:
    num_failed = sum(run.online.errors > 0 for run in cell.runs)
    failed = f"; online requests failed in {num_failed} of {len(cell.runs)} runs" if num_failed else ""
    return f"none kept them{failed}"


def _broken(run: CoRun) -> str:
    """A request that failed is infinitely late."""
    errors = run.online.errors
    return f"broken: of {run.online.requests} online requests {errors} failed" if errors else "broken"


def _load(cell: Cell) -> Row:
    return {"online load": f"{cell.share:.0%}", "system": cell.system}


def _offline(run: CoRun | None) -> Row:
    return {
        "offline tokens/s": f"{run.trial.offline_tokens_per_s:.1f}" if run else "0",
        "output tokens/s": f"{run.trial.offline_output_tokens_per_s:.1f}" if run else "0",
    }


def _setting(cell: Cell, run: CoRun) -> str:
    return f"{cell.knob}: {run.value:g}" if run.value is not None else "as it comes"


def _ratios(online: OnlineReport, alone: OnlineReport) -> str:
    """Mean and p99 of TTFT, then of TBT."""
    ratios = interference(online, alone)
    return ", ".join(f"{each.mean or 0:.2f} / {each.p99 or 0:.2f}" for each in (ratios.ttft_ms, ratios.tbt_ms))


def _harvest(cell: Cell, run: CoRun) -> str:
    harvested = harvest(run.offline, cell.offline_alone, cell.idle_share)
    return "-" if harvested is None else f"{harvested:.2f}"


def _co_batched(cell: Cell, run: CoRun) -> float:
    """Offline tokens/s beyond what the time without online work has room for: those that came beside it."""
    return max(0.0, run.trial.offline_tokens_per_s - cell.idle_share * (cell.offline_alone.total_tokens_per_s or 0.0))


def _spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """The median, the least and the most."""
    if not values:
        return "-"
    return "{} ({} to {})".format(*(form.format(value) for value in (median(values), min(values), max(values))))


def _vllm(cells: Sequence[Cell], share: float) -> float:
    rivals = [cell.best for cell in cells if cell.share == share and cell.system.partition(":")[0] in VLLM]
    return max((run.trial.offline_tokens_per_s for run in rivals if run), default=0.0)


def _pair(summary: Summary | None) -> str:
    return "-" if summary is None else f"{summary.mean:.1f} / {summary.p99:.0f}"


def picture_of(cells: Sequence[Cell], exprs: Sequence[str]) -> Figure:
    """A row for each SLO, a column for each load, a line for each system with a point for each run."""
    names = list(dict.fromkeys(cell.system for cell in cells))
    others = dict(zip((name for name in names if name not in COLOURS), cycle(OTHER_COLOURS)))
    colours = COLOURS | others
    styles = {BEST: ("D", RED), **{name: (".-", colours[name]) for name in names}}
    panels: list[list[Panel]] = []
    for slo in map(parse_slo, exprs):
        bounds = {"SLO": lambda _, limit=slo.limit: limit} if slo.relative else {}
        points = [point for cell in cells for point in _points(cell, slo)]
        panels += Curves("", styles, bounds, from_zero=False).panels(points)
    return draw(panels, 2.6 * len(panels), "offline tokens/s")


def _points(cell: Cell, slo: Slo) -> Iterator[Point]:
    """Of its online work alone, of each run, and again of the best."""
    quantity = f"{slo.metric.removesuffix('_ms').upper()} {slo.statistic} (times online only)"
    at_load = partial(Point, "", f"{cell.share:.0%} busy with online work", cells={})
    yield at_load(cell.system, 0.0, {quantity: 1.0})
    for run in sorted(cell.runs, key=lambda run: run.trial.offline_tokens_per_s):
        alone_ms = slo.value_ms(run.alone)
        if not alone_ms:
            continue
        point = run.trial.offline_tokens_per_s, {quantity: (slo.value_ms(run.online) or 0.0) / alone_ms}
        yield at_load(cell.system, *point)
        if run is cell.best:
            yield at_load(BEST, *point)
