"""``python -m benchmarks.vllm``: vLLM itself beside Slackwater, on this machine."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command import model_folder
from benchmarks.harness.kept import Place
from benchmarks.harness.origin import origin_now
from benchmarks.harness.page import figure_progress
from benchmarks.vllm.comparison import Comparison
from benchmarks.vllm.result import NAME, PAGE, result_of
from benchmarks.vllm.run_store import RunStore
from benchmarks.vllm.servers import SYSTEMS, system_named
from benchmarks.vllm.workload import Setting, Workload
from loadgen.cli import errors_as_lines, is_shown
from loadgen.options import ProgressOption
from loadgen.stopping import run_until_signalled
from shared.process.file_limit import raise_file_limit
from shared.settings.command_options import with_option_groups

DEFAULT_LOADS = (20.0, 50.0, 80.0)
DEFAULT_SYSTEMS = ("vllm-priority", "slackwater-vllm", "slackwater-torch")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _figure_name(text: str) -> str:
    """Raises ValueError for one that cannot be."""
    return Place.of(f"{PAGE.name}/{text}").name


@app.command(no_args_is_help=True)
@with_option_groups
def side_by_side(
    setting: Setting,
    system: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Repeatable: {', '.join(SYSTEMS)}; of vLLM also NAME:TOKENSxREQUESTS, with steps of other sizes, as "
            f"vllm-priority:128x16. Default: {' '.join(DEFAULT_SYSTEMS)}."
        ),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            min=1,
            max=95,
            help=f"Repeatable: % of the time that online work alone keeps the first system busy. {DEFAULT_LOADS}.",
        ),
    ] = None,
    max_runs: Annotated[int, typer.Option(min=1, help="Runs of the search for the best value of a knob.")] = 4,
    repeats: Annotated[
        int, typer.Option(min=1, help="Online-only runs of each load, and runs beside a batch where there is no knob.")
    ] = 1,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help=f"Where {PAGE.file} and {PAGE.images}/ are.")] = Path(
        "docs"
    ),
    work: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where each run's report and the servers' logs go.")
    ] = Path(".side-by-side"),
    name: Annotated[
        str,
        typer.Option(parser=_figure_name, metavar="NAME", help="Of the figure: another stands beside the main one."),
    ] = NAME,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the runs in the --work folder: of this code and machine only.")
    ] = False,
    progress: ProgressOption = None,
) -> None:
    """Offline throughput under the same SLOs: vLLM with as many offline requests at a time as keep them, Slackwater as
    it comes.

    All systems are started, with the same model, threads, limits, trace window and prompts, and are run in turns. Each
    does the offline work alone, and for each load the online work alone and both, vLLM with the settings that a search
    chooses. A run lasts the window, the warm-up and some seconds; one in which online requests fail is made again, and
    each failure is told. Ctrl-C keeps what is done; --resume goes on.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    origin = origin_now(setting.seed)
    with errors_as_lines(console):
        names = list(dict.fromkeys(system or DEFAULT_SYSTEMS))
        systems = list(map(system_named, names))
        shares = sorted({percent / 100 for percent in load or DEFAULT_LOADS})
        store = RunStore(work, setting, origin, resume)
        raise_file_limit()
        with figure_progress(console, is_shown(progress), len(shares)) as shown:
            comparison = Comparison(
                Workload(setting, model_folder(setting.model)),
                systems,
                shares,
                store,
                shown,
                lambda: PAGE.write(out, name, result_of(comparison.cells, setting, comparison.failures), origin),
                max_runs,
                repeats,
                lambda line: console.print(line, markup=False),
            )
            stopped_by = asyncio.run(run_until_signalled(comparison.run()))
        if comparison.cells:
            sys.stdout.write(result_of(comparison.cells, setting, comparison.failures).markdown() + "\n")
    if stopped_by is not None:
        console.print(f"stopped; the runs that are done are in {work}: go on with --resume")
        raise typer.Exit(128 + stopped_by)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.vllm")
