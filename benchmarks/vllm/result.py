"""The comparison's tables and its picture."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.page import Page, Result, Table
from benchmarks.vllm.comparison import Cell, CoRun
from benchmarks.vllm.picture import picture_of
from benchmarks.vllm.workload import Setting
from loadgen.report.metrics import harvest, interference
from loadgen.report.report import Summary

PAGE = Page("vllm_side_by_side", "Side by side with vLLM")
NAME = "side-by-side"
VLLM = ("vllm-priority", "vllm-plain")
BEST_HEADER = (
    "online load",
    "system",
    "best setting",
    "TTFT ms mean / p99",
    "TBT ms mean / p99",
    "of online only: TTFT mean / p99, TBT mean / p99",
    "offline tokens/s",
    "output tokens/s",
    "harvest",
    "times vLLM's best",
)
ALONE_HEADER = (
    "online load",
    "system",
    "requests/s",
    "requests",
    "busy",
    "TTFT ms mean / p99",
    "TBT ms mean / p99",
    "offline only, tokens/s",
    "output tokens/s",
)
RUNS_HEADER = (
    "online load",
    "system",
    "setting",
    "of online only: TTFT mean / p99, TBT mean / p99",
    "SLOs",
    "offline tokens/s",
    "output tokens/s",
)


def result_of(cells: Sequence[Cell], setting: Setting, date: str) -> Result:
    """``cells``: those done so far, at least one."""
    ordered = sorted(cells, key=lambda cell: cell.share)
    slos = " and ".join(setting.slos)
    best = Table(
        f"The most offline tokens/s of the runs that kept {slos}, on {date}. {setting.describe()}. Offline tokens are "
        "prompt and output.",
        BEST_HEADER,
        [_best_row(cell, ordered) for cell in ordered],
    )
    alone = Table("Each kind of work alone.", ALONE_HEADER, [_alone_row(cell) for cell in ordered])
    runs = Table(
        "All runs of both kinds of work together.",
        RUNS_HEADER,
        [_run_row(cell, run) for cell in ordered for run in sorted(cell.runs, key=lambda run: run.values)],
    )
    return Result(NAME, [best, alone, runs], picture_of(ordered, setting.slos))


def _best_row(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    run = cell.best
    rivals = [each.best for each in cells if each.share == cell.share and each.system in VLLM]
    vllm = max(map(_tokens_per_s, rivals), default=0.0)
    times = f"{_tokens_per_s(run) / vllm:.2f}" if vllm else "-"
    if run is None:
        return [f"{cell.share:.0%}", cell.system, "none kept them", "", "", "", "0", "0", "0", times]
    idle_share = 1 - (cell.alone.under_way_share or 0.0)
    harvested = harvest(run.offline, cell.offline_alone, idle_share)
    return [
        f"{cell.share:.0%}",
        cell.system,
        _setting(cell, run),
        _pair(run.online.ttft_ms),
        _pair(run.online.tbt_ms),
        _ratios(cell, run),
        f"{run.trial.offline_tokens_per_s:.1f}",
        f"{run.trial.offline_output_tokens_per_s:.1f}",
        "-" if harvested is None else f"{harvested:.2f}",
        times,
    ]


def _alone_row(cell: Cell) -> list[str]:
    online, offline = cell.alone, cell.offline_alone
    return [
        f"{cell.share:.0%}",
        cell.system,
        f"{cell.rate:g}",
        str(online.requests),
        f"{online.under_way_share or 0:.0%}",
        _pair(online.ttft_ms),
        _pair(online.tbt_ms),
        f"{offline.total_tokens_per_s or 0:.1f}",
        f"{offline.output_tokens_per_s or 0:.1f}",
    ]


def _run_row(cell: Cell, run: CoRun) -> list[str]:
    return [
        f"{cell.share:.0%}",
        cell.system,
        _setting(cell, run),
        _ratios(cell, run),
        "kept" if run.trial.met else "broken",
        f"{run.trial.offline_tokens_per_s:.1f}",
        f"{run.trial.offline_output_tokens_per_s:.1f}",
    ]


def _setting(cell: Cell, run: CoRun) -> str:
    return ", ".join(f"{knob}: {value:g}" for knob, value in zip(cell.knobs, run.values, strict=True))


def _tokens_per_s(run: CoRun | None) -> float:
    return run.trial.offline_tokens_per_s if run is not None else 0.0


def _pair(summary: Summary | None) -> str:
    return "-" if summary is None else f"{summary.mean:.1f} / {summary.p99:.0f}"


def _ratios(cell: Cell, run: CoRun) -> str:
    ratios = interference(run.online, cell.alone)
    pairs = (f"{each.mean or 0:.2f} / {each.p99 or 0:.2f}" for each in (ratios.ttft_ms, ratios.tbt_ms))
    return ", ".join(pairs)
