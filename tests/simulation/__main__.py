"""The whole system in one process and virtual time, under faults: ``python -m tests.simulation``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.faults import report
from tests.simulation.faults import KINDS
from tests.simulation.hash_seed import fix_hash_seed
from tests.simulation.jobs import LostRunError, outcomes
from tests.simulation.records import Record, RecordFile
from tests.simulation.run import Order, Outcome, faults_of, simulate
from tests.simulation.shrink import shrunk
from tests.simulation.totals import Totals, command_of
from tests.simulation.traffic import MIXED, TRAFFICS

INTERRUPTED = 130


def main(
    hours: Annotated[float, typer.Option(min=0.01, help="Virtual hours, in all runs together.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the first run; each further one has the next.")] = 0,
    run_hours: Annotated[float, typer.Option(min=0.03, help="Virtual hours of one run, at most.")] = 4.0,
    seeds: Annotated[int, typer.Option(min=0, help="So many runs instead of what the hours make.")] = 0,
    faults: Annotated[str, typer.Option(help=f"Kinds, with commas between them: {', '.join(KINDS)}; or none.")] = "",
    traffic: Annotated[str, typer.Option(help="mixed: bursts and quiet spells; busy, quiet: one of them.")] = MIXED,
    only: Annotated[str, typer.Option(help="Of one seed, only the faults with these numbers, as 3,7,12.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each in a process.")] = 1,
    log: Annotated[Path | None, typer.Option(help="File for the logs, of one run after the other.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File that each run adds a line to. Those in it count, and are not run again."),
    ] = None,
    shrink: Annotated[bool, typer.Option(help="Look for fewer faults that break the same seed.")] = False,
    keep_going: Annotated[bool, typer.Option(help="Go on with further seeds where one is wrong.")] = False,
    progress: Annotated[bool, typer.Option(help="Show how far it is.")] = True,
) -> None:
    """Run the real services on a bus in memory, in virtual time, with faults drawn from the seed, and check what
    clients saw. The same seed gives the same run, to the byte of its log."""
    console = Console()
    kinds = tuple(KINDS) if not faults else () if faults == "none" else tuple(faults.split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(KINDS)}")
    if traffic not in TRAFFICS:
        raise typer.BadParameter(f"{traffic}: choose from {', '.join(TRAFFICS)}")
    num_runs = seeds or max(1, round(hours / run_hours))
    each_hours = run_hours if seeds or hours >= run_hours else hours
    numbers = tuple(int(number) for number in only.split(",") if number.strip()) if only else None
    orders = [Order(number, each_hours, kinds, numbers, traffic) for number in range(seed, seed + num_runs)]
    totals, start_s = Totals(), time.monotonic()
    file = None if out is None else RecordFile(out)
    done = [] if file is None else list(file.read())
    for record in done:
        totals.add(record)
    known = {record.order for record in done}
    left = [order for order in orders if order not in known]
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)  # also where it runs in the background
    try:
        with _shown(console, len(left), progress) as advance, closing(_outcomes(left, jobs, log)) as found:
            for outcome in found:
                record = Record.of(outcome)
                totals.add(record)
                if file is not None:
                    file.add(record)
                advance()
                if outcome.violations:
                    report.show_violations(console, outcome.violations, outcome.events)
                    if not keep_going:
                        break
    except KeyboardInterrupt:
        console.print("interrupted")
        totals.show(console, time.monotonic() - start_s)
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # what is left of the run that was interrupted has nothing to say
    except LostRunError as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        totals.show(console, time.monotonic() - start_s)
        raise typer.Exit(1) from error
    totals.show(console, time.monotonic() - start_s)
    if shrink:
        for order in totals.wrong:
            smaller = shrunk(order, lambda tried: console.print(f"tries {command_of(tried)}", soft_wrap=True))
            for fault in faults_of(smaller):
                console.print(
                    f"{fault.at_s:.1f} s: {fault.kind} of {fault.target} for {fault.lasts_s:g} s", highlight=False
                )
            console.print(f"[bold]{command_of(smaller)}[/bold]", soft_wrap=True)
    raise typer.Exit(bool(totals.wrong))


def _outcomes(orders: Sequence[Order], jobs: int, log: Path | None) -> Generator[Outcome, None, None]:
    """As they come; with a log one after the other, in this process."""
    if log is None:
        yield from outcomes(orders, jobs)
        return
    with log.open("w", encoding="utf-8") as file:
        for order in orders:
            yield simulate(order, file)


@contextmanager
def _shown(console: Console, num_runs: int, shows: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shows) as bar:
        task = bar.add_task("seeds", total=num_runs)
        yield lambda: bar.advance(task)


if __name__ == "__main__":
    fix_hash_seed("tests.simulation")
    typer.run(main)
