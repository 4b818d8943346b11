"""``python -m benchmarks.hygen FIGURE``: the command line of the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.figure_run import FigureMaker, run_figures
from benchmarks.harness.page import HYGEN_PAGE
from benchmarks.harness.progress import FigureProgress
from benchmarks.hygen.catalogue import FIGURES
from benchmarks.hygen.lab import DURATION_S, PRECISION, Inputs, Lab
from benchmarks.hygen.settings import TOLERANCES
from loadgen.errors import WorkloadError
from loadgen.options import ProgressOption

ABOUT = """HyGen's evaluation (section 5 of the paper) in the simulator, in virtual time.

Each figure prints its tables as Markdown, and writes them and a picture below --out. Searches within one invocation
share their runs: "all" is quicker than one figure after another. --duration 3600 takes the whole hour.
"""

OnlineOption = Annotated[Path | None, typer.Option(metavar="TRACE", help="Online arrivals: Azure's conversations.")]
OfflineOption = Annotated[
    Path | None, typer.Option(metavar="LENGTHS", help="Offline backlog, prompts or lengths: arXiv summaries.")
]
LongOption = Annotated[
    Path | None, typer.Option("--long-online", metavar="TRACE", help="Arrivals with long prompts: Mooncake (fig12).")
]
ShotsOption = Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's dev questions (fig6).")]
QuestionsOption = Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's test questions (fig6).")]
StartOption = Annotated[float, typer.Option(min=0.0, help="Skip so many seconds of the trace.")]
DurationOption = Annotated[float, typer.Option(min=1.0, help="Seconds of each run, in virtual time.")]
ToleranceOption = Annotated[
    list[float] | None, typer.Option(min=0.0, help=f"Of interference, repeatable. Default: {TOLERANCES}.")
]
PrecisionOption = Annotated[
    float, typer.Option(min=0.001, max=1.0, help="From one budget or rate tried to the next, as a share.")
]
OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where hygen.md and images/hygen/ are.")]

app = typer.Typer(help=ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _command(names: Sequence[str]) -> Callable[..., None]:
    """A command that makes these figures."""

    def command(
        online: OnlineOption = None,
        offline: OfflineOption = None,
        long_online: LongOption = None,
        shots: ShotsOption = None,
        questions: QuestionsOption = None,
        start: StartOption = 0.0,
        duration: DurationOption = DURATION_S,
        tolerance: ToleranceOption = None,
        precision: PrecisionOption = PRECISION,
        out: OutOption = Path("docs"),
        progress: ProgressOption = None,
    ) -> None:
        tolerances = tuple(sorted(tolerance or TOLERANCES))
        inputs = Inputs(online, offline, long_online, shots, questions, start, duration, tolerances, precision)

        def start(shown: FigureProgress) -> FigureMaker:
            _check_files(names, inputs)
            lab = Lab(inputs, shown)
            return lambda name: FIGURES[name].make(lab)

        run_figures(names, HYGEN_PAGE, out, progress, start)

    return command


def _check_files(names: Sequence[str], inputs: Inputs) -> None:
    """Before the first run. Raises WorkloadError."""
    needed = dict.fromkeys(file for name in names for file in FIGURES[name].files)
    missing = [f"--{file.replace('_', '-')}" for file in needed if getattr(inputs, file) is None]
    if missing:
        raise WorkloadError(f"{', '.join(names)}: give {' and '.join(missing)}")


for _name, _entry in FIGURES.items():
    app.command(_name, help=f"{_entry.about} Needs {', '.join(_entry.files).replace('_', '-')}.")(_command([_name]))
app.command("all", help="All of them. Needs all files.")(_command(list(FIGURES)))

if __name__ == "__main__":
    app(prog_name="python -m benchmarks.hygen")
