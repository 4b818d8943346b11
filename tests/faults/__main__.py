"""Real processes under faults, and clients that check each token and each line: ``python -m tests.faults``."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.checker.history import Event
from tests.checker.violation import Violation
from tests.faults import plan, report
from tests.faults.campaign import Campaign
from tests.faults.kinds.registry import FAULTS
from tests.faults.nemesis import AT_ONCE
from tests.faults.stack.hosts import may_make_hosts
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack
from tests.faults.stack.store import may_mount
from tests.faults.stack.version import check_out

INTERRUPTED = 130


def main(
    events: Annotated[int, typer.Option(min=1, help="Faults that are done.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the faults and of the load: the same seed, the same faults.")] = 0,
    engine: Annotated[str, typer.Option(help="Of the executors: sim or torch.")] = "sim",
    executors: Annotated[int, typer.Option(min=1, help="That there are.")] = 3,
    strict: Annotated[int, typer.Option(min=0, help="Of them, the strict pool: requests move to it; 0: no pools.")] = 0,
    faults: Annotated[
        list[str] | None, typer.Option(help="Only these kinds, the option once for each; else all that are possible.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="The events of this file, as --keep leaves it.")] = None,
    only: Annotated[str, typer.Option(help="Only the events with these numbers, as 3,7,12.")] = "",
    apart: Annotated[
        float,
        typer.Option(min=0, help="Seconds between the end of a fault and the next; 0: as drawn, several at once."),
    ] = 0.0,
    before: Annotated[
        str, typer.Option(help="Services are of this revision at first, and are upgraded one by one; none: this one.")
    ] = "",
    keep: Annotated[Path | None, typer.Option(help="Folder for logs, events and stores, made new.")] = None,
    progress: Annotated[bool, typer.Option(help="Show how far it is.")] = True,
) -> None:
    """Kill, stop, cut off and otherwise hurt every process of a stack while clients use it, and check what they saw.

    Kinds of faults that this machine does not allow, as those of disks without the right to mount one, are left out.
    """
    console = Console()
    logging.getLogger("shared").addHandler(logging.NullHandler())  # that the campaign loses the bus is what it does
    unknown = [name for name in faults or () if name not in FAULTS]
    if unknown or engine not in ("sim", "torch"):
        raise typer.BadParameter(f"{', '.join(unknown) or engine}: choose from {', '.join(FAULTS)}; sim or torch")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} is there already: name a new folder to keep things in")
    folder = Path(tempfile.mkdtemp(prefix="slackwater-faults-")) if keep is None else keep
    folder.mkdir(parents=True, exist_ok=True)
    try:
        old = check_out(before, folder / "before") if before else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    shape = Shape(
        engine,
        executors,
        strict,
        has_disk=may_mount(folder / "may-mount"),
        has_hosts=engine == "torch" and may_make_hosts(),
        before=old,
    )
    numbers = {int(number) for number in only.split(",") if number.strip()}
    chosen = [FAULTS[name] for name in faults or FAULTS]
    try:
        drawn = plan.draw(seed, max(numbers, default=events - 1) + 1, chosen, shape)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    planned = plan.only(drawn if replay is None else plan.read(replay), numbers)
    planned = plan.apart(planned, apart) if apart else planned
    plan.write(folder / "events.jsonl", planned)
    run = Run(console, folder, shape, planned, seed, 1 if apart else AT_ONCE, progress)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(run.run())
    except KeyboardInterrupt:
        console.print("interrupted")
        run.show([])
        raise typer.Exit(INTERRUPTED) from None
    run.show(found)
    if keep is None and not found:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(bool(found))


class Run:
    """One campaign, as the command shows it."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        shape: Shape,
        planned: list[plan.Planned],
        seed: int,
        at_once: int,
        shows: bool,
    ) -> None:
        self._console = console
        self._folder = folder
        self._shape = shape
        self._planned = planned
        self._seed = seed
        self._at_once = at_once
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not shows)
        self._task = self._progress.add_task("starting", total=len(planned))
        self._campaign: Campaign | None = None
        self._events: list[Event] = []

    async def run(self) -> list[Violation]:
        with self._progress:
            async with Stack(self._folder, self._shape, random.Random(self._seed)) as stack:
                self._campaign = Campaign(stack, self._seed, self._tell, self._at_once)
                await self._campaign.begin()
                found = await self._campaign.run(self._planned)
                self._events = [*stack.history.events]
                return found

    def show(self, found: list[Violation]) -> None:
        """The table, and what was wrong."""
        self._console.print(f"seed {self._seed}, {self._shape}")
        if self._campaign is not None:
            self._console.print(report.table(self._campaign.summary))
            for line in report.totals(self._campaign.summary):
                self._console.print(line, highlight=False)
        if found:
            report.show_violations(self._console, found, self._events)
            numbers = ",".join(str(event.number) for event in sorted(self._events, key=lambda event: event.number))
            again = f"python -m tests.faults --replay {self._folder / 'events.jsonl'} --only {numbers}"
            self._console.print(f"logs are in {self._folder}; again: {again}", soft_wrap=True, markup=False)

    def _tell(self, event: Event) -> None:
        self._progress.update(self._task, advance=1, description=f"{event.kind}: {event.target}")
        if self._progress.disable:
            line = f"{event.number} {event.at_s:.1f} {event.kind}: {event.target} {event.note}"
            print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
