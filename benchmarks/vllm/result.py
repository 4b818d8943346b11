"""The comparison's tables and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.page import Page, Result
from benchmarks.harness.table import Columns, Table
from benchmarks.vllm.comparison import Cell, CoRun
from benchmarks.vllm.picture import picture_of
from benchmarks.vllm.workload import Setting
from loadgen.report.metrics import harvest, interference
from loadgen.report.report import Summary

PAGE = Page("vllm_side_by_side", "Side by side with vLLM")
NAME = "side-by-side"
VLLM = ("vllm-priority", "vllm-plain")


@dataclass(frozen=True, slots=True)
class Row:
    """A run of a cell, None where none kept the SLOs. ``vllm``: offline tokens/s of vLLM's best run under the load."""

    cell: Cell
    run: CoRun | None
    vllm: float = 0.0

    @property
    def offline_tokens_per_s(self) -> float:
        return 0.0 if self.run is None else self.run.trial.offline_tokens_per_s

    @property
    def setting(self) -> str:
        if self.run is None:
            return "none kept them"
        return ", ".join(f"{knob}: {value:g}" for knob, value in zip(self.cell.knobs, self.run.values, strict=True))

    @property
    def ratios(self) -> str:
        """Mean and p99 of TTFT, then of TBT."""
        if self.run is None:
            return ""
        ratios = interference(self.run.online, self.cell.alone)
        return ", ".join(f"{each.mean or 0:.2f} / {each.p99 or 0:.2f}" for each in (ratios.ttft_ms, ratios.tbt_ms))

    @property
    def harvest(self) -> str:
        if self.run is None:
            return "0"
        idle_share = 1 - (self.cell.alone.under_way_share or 0.0)
        harvested = harvest(self.run.offline, self.cell.offline_alone, idle_share)
        return "-" if harvested is None else f"{harvested:.2f}"


LOAD: Columns[Row] = {"online load": lambda row: f"{row.cell.share:.0%}", "system": lambda row: row.cell.system}
RATIOS = "of online only: TTFT mean / p99, TBT mean / p99"
OFFLINE: Columns[Row] = {
    "offline tokens/s": lambda row: f"{row.run.trial.offline_tokens_per_s:.1f}" if row.run else "0",
    "output tokens/s": lambda row: f"{row.run.trial.offline_output_tokens_per_s:.1f}" if row.run else "0",
}
BEST: Columns[Row] = {
    **LOAD,
    "best setting": lambda row: row.setting,
    "TTFT ms mean / p99": lambda row: _pair(row.run.online.ttft_ms) if row.run else "",
    "TBT ms mean / p99": lambda row: _pair(row.run.online.tbt_ms) if row.run else "",
    RATIOS: lambda row: row.ratios,
    **OFFLINE,
    "harvest": lambda row: row.harvest,
    "times vLLM's best": lambda row: f"{row.offline_tokens_per_s / row.vllm:.2f}" if row.vllm else "-",
}
ALONE: Columns[Row] = {
    **LOAD,
    "requests/s": lambda row: f"{row.cell.rate:g}",
    "requests": lambda row: str(row.cell.alone.requests),
    "busy": lambda row: f"{row.cell.alone.under_way_share or 0:.0%}",
    "TTFT ms mean / p99": lambda row: _pair(row.cell.alone.ttft_ms),
    "TBT ms mean / p99": lambda row: _pair(row.cell.alone.tbt_ms),
    "offline only, tokens/s": lambda row: f"{row.cell.offline_alone.total_tokens_per_s or 0:.1f}",
    "output tokens/s": lambda row: f"{row.cell.offline_alone.output_tokens_per_s or 0:.1f}",
}
RUNS: Columns[Row] = {
    **LOAD,
    "setting": lambda row: row.setting,
    RATIOS: lambda row: row.ratios,
    "SLOs": lambda row: "kept" if row.run and row.run.trial.met else "broken",
    **OFFLINE,
}


def result_of(cells: Sequence[Cell], setting: Setting, date: str) -> Result:
    """``cells``: those done so far, at least one."""
    ordered = sorted(cells, key=lambda cell: cell.share)
    best = [Row(cell, cell.best, _vllm(cells, cell.share)) for cell in ordered]
    runs = [Row(cell, run) for cell in ordered for run in sorted(cell.runs, key=lambda run: run.values)]
    caption = (
        f"The most offline tokens/s of the runs that kept {' and '.join(setting.slos)}, on {date}. "
        f"{setting.describe()}. Offline tokens are prompt and output."
    )
    tables = [
        Table.of(caption, BEST, best),
        Table.of("Each kind of work alone.", ALONE, best),
        Table.of("All runs of both kinds of work together.", RUNS, runs),
    ]
    return Result(tables, picture_of(ordered, setting.slos))


def _vllm(cells: Sequence[Cell], share: float) -> float:
    rivals = [cell.best for cell in cells if cell.share == share and cell.system in VLLM]
    return max((run.trial.offline_tokens_per_s for run in rivals if run), default=0.0)


def _pair(summary: Summary | None) -> str:
    return "-" if summary is None else f"{summary.mean:.1f} / {summary.p99:.0f}"
