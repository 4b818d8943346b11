"""``python -m benchmarks.figures PAPER FIGURE...``: the command line of the figures."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from benchmarks.figures.papers.blendserve import BLENDSERVE
from benchmarks.figures.papers.bros import BROS
from benchmarks.figures.papers.echo import ECHO
from benchmarks.figures.papers.hygen import HYGEN
from benchmarks.figures.papers.ooco import OOCO
from benchmarks.harness.origin import Origin, origin_now
from benchmarks.harness.page import FigureProgress, Paper, Result, run_figures
from loadgen.errors import WorkloadError
from loadgen.options import ProgressOption
from shared.settings.command_options import with_option_groups

ABOUT = """The figures of papers, in the simulator and in virtual time.

Each prints its tables as Markdown, and writes them into the paper's page and a picture beside it. Figures of one
invocation share their runs: "all" is quicker than one after another. Ctrl-C keeps those that are done.
"""
ALL = "all"
PAPERS = (HYGEN, BROS, ECHO, BLENDSERVE, OOCO)

FiguresArgument = Annotated[list[str], typer.Argument(metavar="FIGURE...", help=f'By name, or "{ALL}".')]
OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the page and the folder of its images are.")]

app = typer.Typer(help=ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def command_of(paper: Paper) -> Callable[..., None]:
    """The command that makes a paper's figures."""

    def command(
        figures: FiguresArgument, options: Any, out: OutOption = Path("docs"), progress: ProgressOption = None
    ) -> None:
        def start(shown: FigureProgress) -> Callable[[str], Result]:
            _check(paper, figures, options)
            opened = paper.open(options, shown)
            return lambda name: paper.figures[name].make(opened)

        names = list(paper.figures) if ALL in figures else figures
        now = origin_now(getattr(options, "seed", None))
        run_figures(names, paper.page, out, progress, partial(_origin, now, figures), start)

    command.__annotations__["options"] = paper.options
    return with_option_groups(command)


def help_of(paper: Paper) -> str:
    """With a line for each figure."""
    lines, width = [], max(10, *(len(name) + 1 for name in paper.figures))
    for name, figure in paper.figures.items():
        needs = f" Needs {', '.join(map(_option, figure.files))}." if figure.files else ""
        lines.append(f"{name:<{width}}{figure.about}{needs}")
    return "\n".join([paper.about, "", "\b", *lines])


def _origin(now: Origin, asked: Sequence[str], name: str) -> Origin:
    """As if the figure had been asked for by itself."""
    words = shlex.split(now.command or "")
    place = next((number for number, word in enumerate(words) if word in asked), len(words))
    others = [word for word in words[place:] if word not in asked]
    return msgspec.structs.replace(now, command=shlex.join([*words[:place], name, *others]))


def _check(paper: Paper, names: list[str], options: Any) -> None:
    """Before the first run. Raises WorkloadError for a name that is no figure's, and for a file that is missing."""
    unknown = [name for name in names if name not in (*paper.figures, ALL)]
    if unknown:
        raise WorkloadError(f"no figure {unknown[0]!r}; known: {', '.join([*paper.figures, ALL])}")
    chosen = paper.figures if ALL in names else names
    needed = dict.fromkeys(file for name in chosen for file in paper.figures[name].files)
    if missing := [_option(file) for file in needed if getattr(options, file) is None]:
        raise WorkloadError(f"these figures need {' and '.join(missing)}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


for _paper in PAPERS:
    app.command(_paper.page.name, help=help_of(_paper))(command_of(_paper))

if __name__ == "__main__":
    app(prog_name="python -m benchmarks.figures")
