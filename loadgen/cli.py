"""``slackwater replay``: the command line of the load generator."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import LoadgenError, WorkloadError
from loadgen.options import STANDARD_OUTPUT, OfflineOptions, ReportOptions, SendingOptions, WorkloadOptions
from loadgen.progress import progress_on
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.report import Report
from loadgen.report.table import print_report
from loadgen.stopping import run_until_signalled
from shared.client_key import client_key
from shared.json_text import json_text
from shared.process.file_limit import raise_file_limit
from shared.settings.command_options import with_option_groups

EXIT_NOTHING_DONE = 1
EXIT_BAD_INPUT = 2


@with_option_groups
def replay(
    workload: WorkloadOptions,
    backlog: OfflineOptions,
    reporting: ReportOptions,
    sending: SendingOptions,
    url: Annotated[
        str, typer.Option(envvar="SLACKWATER_URL", help="An OpenAI-compatible server.")
    ] = "http://127.0.0.1:8000",
) -> None:
    """Replay a production trace against an OpenAI-compatible server, beside an offline backlog.

    Requests leave at the trace's own times whatever the server does, and latency counts from those times. The API
    key, where one is needed, is read from SLACKWATER_API_KEY, else from OPENAI_API_KEY.
    """
    replay_on(url, workload, backlog, reporting, sending)


def replay_on(
    url: str, workload: WorkloadOptions, backlog: OfflineOptions, reporting: ReportOptions, sending: SendingOptions
) -> None:
    """The whole command, with its report and its exit status."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console):
        options = backlog.plan_options() | reporting.plan_options()
        plan = workload.plan(sending.duration, sending.model, **options)
        shown = is_shown(reporting.progress)
        report, stopped_by, failure = uvloop.run(run_replay(plan, url, sending.timeout, console, shown))
        if report is not None:
            write_report(report, reporting.json_file)
        if failure is not None:
            raise failure
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if report is None or not did_something(report):
        raise typer.Exit(EXIT_NOTHING_DONE)


def is_shown(progress: bool | None) -> bool:
    """As asked for; by default on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


@contextlib.contextmanager
def errors_as_lines(console: Console) -> Iterator[None]:
    """A named error becomes one line on the console and status 2."""
    try:
        yield
    except LoadgenError as error:
        console.print(f"error: {error}", markup=False, style="red")
        raise typer.Exit(EXIT_BAD_INPUT) from error


async def run_replay(
    plan: ReplayPlan, url: str, timeout_s: float, console: Console, shown: bool
) -> tuple[Report | None, signal.Signals | None, LoadgenError | None]:
    """Run to the end, or until a signal or an error stops it. Returns the report, partial when stopped (None when
    stopped before anything ran), and what stopped it. A second signal ends the process at once."""
    raise_file_limit()
    async with OpenAIClient(url, timeout_s, client_key(os.environ)) as client:
        with progress_on(console, shown) as progress:
            runner = Replay(plan, client, progress)
            stopped_by, failure = None, None
            try:
                stopped_by = await run_until_signalled(runner.prepare_and_run())
            except LoadgenError as error:
                failure = error
        is_partial = stopped_by is not None or failure is not None
        return runner.report(is_partial) if runner.started else None, stopped_by, failure


def write_report(report: Report, json_file: str | None) -> None:
    """As ``write_result``."""
    write_result(report, json_file, lambda console: print_report(console, report))


def write_result(result: object, json_file: str | None, print_tables: Callable[[Console], None]) -> None:
    """JSON in the file, then tables on stdout, which may be closed by now; or JSON on stdout alone. Raises
    WorkloadError."""
    text = json_text(result) + "\n"
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        if json_file is not None:
            Path(json_file).write_text(text)
    except OSError as error:
        raise WorkloadError(f"cannot write {json_file}: {error.strerror}") from error
    finally:
        print_tables(Console(soft_wrap=False, highlight=False))


def did_something(report: Report) -> bool:
    """At least one request was answered."""
    return any(side is not None and side.completed > 0 for side in (report.online, report.offline))
