"""``python -m benchmarks.vllm``: vLLM itself beside Slackwater, on this machine."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.figure_run import EXIT_INTERRUPTED
from benchmarks.progress import figure_progress
from benchmarks.vllm.comparison import Comparison
from benchmarks.vllm.result import PAGE, result_of
from benchmarks.vllm.run_store import RunStore
from benchmarks.vllm.servers import SYSTEMS
from benchmarks.vllm.workload import DEFAULT_SLOS, Setting, Workload
from loadgen.cli import errors_as_lines, is_shown, raise_file_limit
from loadgen.errors import WorkloadError
from loadgen.options import ProgressOption
from loadgen.report.slo import parse_slo
from loadgen.stopping import run_until_signalled
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare

DEFAULTS = Setting("", "", DEFAULT_MODEL)
DEFAULT_LOADS = (20.0, 50.0, 80.0)
DEFAULT_SYSTEMS = ("vllm-priority", "slackwater-vllm", "slackwater-torch")

TraceOption = Annotated[Path, typer.Option("--online", metavar="TRACE", help="Arrivals, as for slackwater replay.")]
PromptsOption = Annotated[Path, typer.Option("--offline", metavar="PROMPTS", help="Backlog, as for slackwater replay.")]
SystemOption = Annotated[
    list[str] | None,
    typer.Option(help=f"Repeatable, in this order: {', '.join(SYSTEMS)}. Default: {' '.join(DEFAULT_SYSTEMS)}."),
]
LoadOption = Annotated[
    list[float] | None,
    typer.Option(
        min=1, max=95, help="Repeatable: % of the time that online work alone keeps the first system busy. 20 50 80."
    ),
]
WindowOption = Annotated[float, typer.Option(min=1.0, help="Seconds of each run.")]
WarmUpOption = Annotated[float, typer.Option(min=0.0, help="Seconds of offline work before each window.")]
SloOption = Annotated[list[str] | None, typer.Option(help=f"Repeatable. Default: {' '.join(DEFAULT_SLOS)}.")]
MaxRunsOption = Annotated[int, typer.Option(min=1, help="Runs of the search for the best value of a knob.")]
BaselinesOption = Annotated[
    int, typer.Option(min=1, help="Online-only runs of each load; their mean is compared with.")
]
WorkOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where each run's report and the servers' logs go.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Take over the runs that are in the --work folder.")]
OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help=f"Where {PAGE.file} and {PAGE.images}/ are.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """vLLM itself beside Slackwater, on this machine."""


@app.command()
def side_by_side(
    online: TraceOption,
    offline: PromptsOption,
    system: SystemOption = None,
    load: LoadOption = None,
    window: WindowOption = DEFAULTS.window_s,
    start: Annotated[float, typer.Option(min=0.0, help="Skip so many seconds of the trace.")] = DEFAULTS.start_s,
    length_scale: Annotated[float, typer.Option(help="Factor on all lengths.")] = DEFAULTS.length_scale,
    warm_up: WarmUpOption = DEFAULTS.warm_up_s,
    offline_limit: Annotated[int, typer.Option(min=1, help="So many of the prompts.")] = DEFAULTS.offline_limit,
    offline_max_tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens of each prompt.")] = None,
    slo: SloOption = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each engine.")] = DEFAULTS.threads,
    max_runs: MaxRunsOption = 4,
    baselines: BaselinesOption = 1,
    out: OutOption = Path("docs"),
    work: WorkOption = Path(".side-by-side"),
    resume: ResumeOption = False,
    progress: ProgressOption = None,
) -> None:
    """Offline throughput under the same SLOs: vLLM with as many offline requests at a time as keep them, Slackwater
    with the latency budgets that keep them.

    Each system is started alone, with the same model, threads, limits, trace window and prompts. It does the offline
    work alone, and for each load the online work alone and then both, with the settings that the same search chooses.
    A run lasts the window, the warm-up and some seconds. Ctrl-C keeps what is done; --resume goes on.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console):
        setting = Setting(
            online=str(online),
            offline=str(offline),
            model=DEFAULT_MODEL,
            window_s=window,
            start_s=start,
            length_scale=length_scale,
            warm_up_s=warm_up,
            offline_limit=offline_limit,
            offline_max_tokens=offline_max_tokens,
            slos=tuple(parse_slo(expr).expr for expr in slo or DEFAULT_SLOS),
            threads=threads,
        )
        names = list(dict.fromkeys(system or DEFAULT_SYSTEMS))
        if unknown := [name for name in names if name not in SYSTEMS]:
            raise WorkloadError(f"unknown system {unknown[0]!r}; known: {', '.join(SYSTEMS)}")
        shares = sorted({percent / 100 for percent in load or DEFAULT_LOADS})
        stopped_by = _compare(
            setting, names, shares, RunStore(work, setting, resume), max_runs, baselines, out, console, progress
        )
    if stopped_by is not None:
        console.print(f"stopped; the runs that are done are in {work}: go on with --resume")
        raise typer.Exit(EXIT_INTERRUPTED)


def _compare(
    setting: Setting,
    names: list[str],
    shares: list[float],
    store: RunStore,
    max_runs: int,
    num_baselines: int,
    out: Path,
    console: Console,
    progress: bool | None,
) -> signal.Signals | None:
    """Print the tables when all is done. Returns the signal that stopped it. Raises LoadgenError."""
    raise_file_limit()
    model = prepare(setting.model, default_cache_dir(), lambda line: console.print(line, markup=False))
    date = datetime.now(UTC).date().isoformat()

    def write() -> None:
        try:
            PAGE.write(out, result_of(comparison.cells, setting, date))
        except OSError as error:
            raise WorkloadError(f"cannot write below {out}: {error.strerror}") from error

    with figure_progress(console, is_shown(progress), len(names) * len(shares)) as shown:
        systems = [SYSTEMS[name] for name in names]
        workload = Workload(setting, model.path)
        comparison = Comparison(workload, systems, shares, store, shown, write, max_runs, num_baselines)
        stopped_by = asyncio.run(_run(comparison))
    if comparison.cells:
        sys.stdout.write(result_of(comparison.cells, setting, date).markdown() + "\n")
    return stopped_by


async def _run(comparison: Comparison) -> signal.Signals | None:
    return await run_until_signalled(comparison.run())


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.vllm")
