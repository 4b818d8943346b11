"""``slackwater batch submit | list | get | cancel``: submit a file of requests, watch it, fetch its results."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table

from loadgen.progress import bars_on
from services.local.commands.parameters import JsonOption, show
from services.local.commands.server import ApiClient, Json, ServerOptions
from shared.errors import ApiError
from shared.settings.command_options import one_of, with_option_groups

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")  # what a batch's lines may ask for
POLL_S = 0.5  # the API has no event for a batch's progress
SPEED_S = 60.0  # over which the time left is estimated
COLUMNS = ("id", "status", "done", "failed", "left", "total", "endpoint", "created")
EXIT_OF = {"completed": 3, "failed": 4, "expired": 5, "cancelled": 6}  # where not every line is done
MAX_ERRORS_SHOWN = 10

OutputOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write the results here, failed lines to NAME.errors.jsonl.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]

batch_app = typer.Typer(no_args_is_help=True)


@batch_app.command()
@with_option_groups
def submit(
    *,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL, a request per line.")],
    endpoint: Annotated[
        str | None,
        typer.Option(
            callback=one_of("endpoint", ENDPOINTS), help=f"{' or '.join(ENDPOINTS)}; by default the first line's url."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the batch has ended.")] = False,
    output: OutputOption = None,
    force: ForceOption = False,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and start its batch. --output implies --wait.

    The exit status then says how it ended: 0 where every line is done, 3 where it completed and lines have failed, 4
    where it failed as a whole, 5 where it expired, 6 where it was cancelled.
    """
    _require_writable(output, force)
    with server.client() as client:
        body = {"endpoint": endpoint or _first_endpoint(file), "completion_window": "24h"}
        batch = client.post("/v1/batches", {"input_file_id": client.upload(file, purpose="batch")["id"], **body})
        with _kept(batch["id"]):
            if wait or output:
                batch = _wait(client, batch["id"])
            show(batch, as_json, _print_table)
            _fetch(client, batch, output, force)
    if wait or output:
        _exit_as_it_ended(batch)


@batch_app.command("list")
@with_option_groups
def list_batches(
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this id.")] = None,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """List batches, the newest first."""
    with server.client() as client:
        page = client.get("/v1/batches", limit=limit, after=after)
    show(page, as_json, lambda page: _print_table(*page["data"]))


@batch_app.command()
@with_option_groups
def get(
    *,
    batch_id: BatchId,
    output: OutputOption = None,
    force: ForceOption = False,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a batch; with --output, fetch its results."""
    _require_writable(output, force)
    with server.client() as client:
        batch = client.get(f"/v1/batches/{batch_id}")
        show(batch, as_json, _print_table)
        with _kept(batch_id):
            num_files = _fetch(client, batch, output, force)
    if output and not num_files:
        raise ApiError(f"batch {batch_id} has no results: it is {batch['status']}")


@batch_app.command()
@with_option_groups
def cancel(batch_id: BatchId, server: ServerOptions, as_json: JsonOption = False) -> None:
    """Cancel a batch; what it has finished is kept."""
    with server.client() as client:
        show(client.post(f"/v1/batches/{batch_id}/cancel"), as_json, _print_table)


def _first_endpoint(file: Path) -> str:
    """The ``url`` of the first request; the chat endpoint where the line has none, for the server to judge."""
    with file.open("rb") as lines:
        first = lines.readline()
    try:
        url = json.loads(first)["url"]
    except (ValueError, KeyError, TypeError):
        return ENDPOINTS[0]
    return url if url in ENDPOINTS else ENDPOINTS[0]


def _wait(client: ApiClient, batch_id: str) -> Json:
    """Show a progress bar and an estimate of the time left on stderr until the batch has ended, a line for each new
    status where that is no terminal; the batch. Raises ApiError."""
    console = Console(stderr=True)
    status = ""
    columns = TextColumn("left"), TimeRemainingColumn()
    with bars_on(console, *columns, disable=not console.is_terminal, speed_estimate_period=SPEED_S) as progress:
        bar = progress.add_task("validating", total=None, facts="")
        while True:
            batch = client.get(f"/v1/batches/{batch_id}")
            counts = _counts(batch)
            ran, total = counts["total"] - counts["left"], counts["total"] or None
            facts = ", ".join(_not_done(batch))
            progress.update(bar, description=batch["status"], completed=ran, total=total, facts=facts)
            if batch["status"] != status and not (status and console.is_terminal):
                console.print(f"{batch_id} is {batch['status']}", highlight=False, markup=False, soft_wrap=True)
            status = batch["status"]
            if status in EXIT_OF:
                return batch
            time.sleep(POLL_S)


def _error_path(output: Path) -> Path:
    return output.with_suffix(".errors.jsonl")


def _require_writable(output: Path | None, force: bool) -> None:
    """Before anything is sent. Raises BadParameter where results could not be written."""
    if output is None or (output.exists() and not output.is_file()):  # a device or a pipe
        return
    for path in (output, _error_path(output)):
        folder = path.resolve().parent
        if not folder.is_dir():
            problem = f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            problem = f"{folder} cannot be written to"
        elif path.exists() and not force:
            problem = "it is there already; replace it with --force, or name another file"
        else:
            continue
        raise typer.BadParameter(f"cannot write {path}: {problem}", param_hint="'--output'")


def _fetch(client: ApiClient, batch: Json, output: Path | None, force: bool) -> int:
    """Write the batch's results to ``output``, if any, and failed lines beside it; the number of files. Raises
    ApiError."""
    files = ("output_file_id", "results", output), ("error_file_id", "failed lines", output and _error_path(output))
    there = [(batch[field], what, path) for field, what, path in files if path and batch.get(field)]
    for file_id, what, path in there:
        try:
            client.download(file_id, path, replace=force)
        except OSError as error:
            raise ApiError(f"cannot write {path}: {error.strerror}") from error
        print(f"{what}: {path}", file=sys.stderr)
    return len(there)


@contextlib.contextmanager
def _kept(batch_id: str) -> Iterator[None]:
    """What goes wrong with a batch that the server has is told with how to get at its results."""
    try:
        yield
    except ApiError as error:
        again = f"slackwater batch get {batch_id} --output FILE"
        raise ApiError(f"{error}\nthe server keeps the batch and its results: {again}") from error


def _exit_as_it_ended(batch: Json) -> None:
    """Where not every line is done: say on stderr what is not, and end the command with its exit status."""
    counts, status = _counts(batch), batch["status"]
    if status == "completed" and not counts["failed"]:
        return
    figures = [f"{counts['completed']:,} of {counts['total']:,} lines are done", *_not_done(batch)]
    errors = (batch.get("errors") or {}).get("data") or []
    lines = [
        f"  line {error['line']}: {error['message']}" if error.get("line") else f"  {error['message']}"
        for error in errors[:MAX_ERRORS_SHOWN]
    ]
    print("\n".join([f"error: batch {batch['id']} is {status}: {', '.join(figures)}", *lines]), file=sys.stderr)
    raise typer.Exit(EXIT_OF[status])


def _not_done(batch: Json) -> list[str]:
    """How many lines have failed, and how many of a cancelled or expired batch have never run."""
    counts, status = _counts(batch), batch["status"]
    never_run = counts["left"] if status in ("cancelled", "expired") else 0
    return [f"{number:,} {what}" for number, what in ((counts["failed"], "failed"), (never_run, status)) if number]


def _print_table(*batches: Json) -> None:
    """The batches as a table on stdout."""
    table = Table(box=None, header_style="bold")
    longest = max((len(batch["id"]) for batch in batches), default=0)
    for name in COLUMNS:
        table.add_column(name, overflow="fold", min_width=longest if name == "id" else None)  # so that it can be copied
    for batch in batches:
        counts = _counts(batch)
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(batch["created_at"]))
        figures = (str(counts[name]) for name in ("completed", "failed", "left", "total"))
        table.add_row(batch["id"], batch["status"], *figures, batch["endpoint"], created)
    Console().print(table)


def _counts(batch: Json) -> dict[str, int]:
    """With ``left``: those that have not run, or never will where the batch has ended."""
    counts = {"total": 0, "completed": 0, "failed": 0, **(batch.get("request_counts") or {})}
    return {**counts, "left": counts["total"] - counts["completed"] - counts["failed"]}
