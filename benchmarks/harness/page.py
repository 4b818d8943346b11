"""A paper, its figures, how they are made one after another, and what each leaves behind when it is done: tables in a
Markdown page, a picture beside it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness.kept import Kept, Place, keep
from benchmarks.harness.origin import Origin
from benchmarks.harness.table import Result as Result
from loadgen.cli import errors_as_lines, is_shown
from loadgen.progress import ReplayProgress, bars_on

EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Page:
    """A paper's figures."""

    name: str
    title: str

    @property
    def file(self) -> str:
        return f"{self.name}.md"

    @property
    def images(self) -> str:
        """The folder of the pictures."""
        return f"images/{self.name}"

    def write(self, folder: Path, name: str, result: Result, origin: Origin) -> None:
        """The picture and what the tables are made of below ``folder``, the tables into the page, in the place of the
        figure ``name``, else at its end. Raises WorkloadError for a folder that cannot be written to, and for a page
        with half a place."""
        keep(folder, Place(self.name, name), Kept(origin, result.told), result.picture, self.title)


@dataclass(frozen=True, slots=True)
class Figure:
    """``make``: of what the paper's ``open`` returns; ``files``: the options that it cannot do without."""

    make: Callable[[Any], Result]
    about: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """``options``: a dataclass, whose fields are options of the paper's command; ``open``: what all figures of one
    invocation share, so that they share runs too; ``figures``: those that need the same runs stand together."""

    page: Page
    about: str
    options: type
    open: Callable[[Any, ReplayProgress], Any]
    figures: Mapping[str, Figure]


def run_figures(
    names: Sequence[str],
    page: Page,
    out: Path,
    shown: bool | None,
    origin: Callable[[str], Origin],
    start: Callable[[FigureProgress], Callable[[str], Result]],
) -> None:
    """Each is printed, and written below ``out`` when it is done, so that an interrupt loses only the one under way.
    ``start`` gives what makes a figure of a name, ``origin`` where it comes from. A named error ends with status 2, an
    interrupt with 130."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    origins, done = {name: origin(name) for name in names}, list[str]()
    try:
        with ExitStack() as after:
            after.enter_context(errors_as_lines(console))
            progress = after.enter_context(figure_progress(console, is_shown(shown), len(names)))
            after.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, progress.on_interrupt))
            make = start(progress)
            for name in names:
                progress.figure(name)
                result = make(name)
                page.write(out, name, result, origins[name])
                done.append(name)
                print(result.markdown(), end="\n\n", flush=True)
    except KeyboardInterrupt:
        console.print(f"stopped; done and written: {', '.join(done) or 'nothing'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


class FigureProgress:
    """What figures and their runs tell while they are made: a bar over the figures and one over the run's online
    requests. Whoever tells something also learns of an interrupt: the KeyboardInterrupt of its own moment is lost where
    Python ignores exceptions, as in finalizers and in callbacks of weak references."""

    def __init__(self, bars: Progress | None = None, num_figures: int = 0) -> None:
        self._bars = bars or Progress(disable=True)
        self._is_interrupted = False
        self._num_runs = 0
        self._figures = self._bars.add_task("figures", total=num_figures, completed=-1, facts="")
        self._run = self._bars.add_task("", facts="")

    def figure(self, name: str) -> None:
        """The next one is begun."""
        self._check()
        self._bars.update(self._figures, description=name, advance=1)

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._check()
        self._num_runs += 1
        self._bars.update(self._figures, facts=f"run {self._num_runs}")
        self._bars.reset(self._run, description="", total=num_requests, facts=name)

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._check()
        self._bars.update(self._run, completed=finished)

    def offline(self, done: int, backlog: int) -> None:
        self._check()

    def on_interrupt(self, *_: object) -> None:
        """A handler of SIGINT. Raises KeyboardInterrupt, as does whatever is told next."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _check(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt


@contextmanager
def figure_progress(console: Console, shown: bool, num_figures: int) -> Iterator[FigureProgress]:
    """Bars on the console, or nothing."""
    with bars_on(console, disable=not shown) as bars:
        yield FigureProgress(bars, num_figures)
