"""``slackwater batch submit | list | get | cancel``: submit a file of requests, watch it, fetch its results."""

import json
import sys
import time
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
FINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
POLL_S = 0.5  # the API has no event for a batch's progress
SPEED_S = 60.0  # over which the time left is estimated
COLUMNS = ("id", "status", "done", "failed", "total", "endpoint", "created")

OutputOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write the results here, failed lines to NAME.errors.jsonl.")
]
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
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and start its batch. --output implies --wait."""
    with server.client() as client:
        body = {"endpoint": endpoint or _first_endpoint(file), "completion_window": "24h"}
        batch = client.post("/v1/batches", {"input_file_id": client.upload(file, purpose="batch")["id"], **body})
        if wait or output:
            batch = _wait(client, batch["id"])
        show(batch, as_json, _print_table)
        if output and (batch.get("output_file_id") or batch.get("error_file_id")):
            _fetch(client, batch, output)
        if wait or output:
            _require_completed(batch)


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
def get(batch_id: BatchId, server: ServerOptions, output: OutputOption = None, as_json: JsonOption = False) -> None:
    """Show a batch; with --output, fetch its results."""
    with server.client() as client:
        batch = client.get(f"/v1/batches/{batch_id}")
        show(batch, as_json, _print_table)
        if output:
            _fetch(client, batch, output)


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
            done, total = counts["completed"] + counts["failed"], counts["total"] or None
            facts = f"{counts['failed']:,} failed" if counts["failed"] else ""
            progress.update(bar, description=batch["status"], completed=done, total=total, facts=facts)
            if batch["status"] != status and not (status and console.is_terminal):
                console.print(f"{batch_id} is {batch['status']}", highlight=False, markup=False, soft_wrap=True)
            status = batch["status"]
            if status in FINAL_STATUSES:
                return batch
            time.sleep(POLL_S)


def _fetch(client: ApiClient, batch: Json, output: Path) -> None:
    """Write the batch's results to ``output``, and failed lines beside it as NAME.errors.jsonl. Raises ApiError."""
    if not batch.get("output_file_id") and not batch.get("error_file_id"):
        raise ApiError(f"batch {batch['id']} has no results: it is {batch['status']}")
    for field, what, path in (
        ("output_file_id", "results", output),
        ("error_file_id", "failed lines", output.with_suffix(".errors.jsonl")),
    ):
        if batch.get(field):
            client.download(batch[field], path)
            print(f"{what}: {path}", file=sys.stderr)


def _require_completed(batch: Json) -> None:
    """Raises ApiError with the batch's first errors where it ended in another way."""
    if batch["status"] == "completed":
        return
    errors = (batch.get("errors") or {}).get("data") or []
    lines = [
        f"  line {error['line']}: {error['message']}" if error.get("line") else f"  {error['message']}"
        for error in errors
    ]
    raise ApiError("\n".join([f"batch {batch['id']} is {batch['status']}", *lines[:10]]))


def _print_table(*batches: Json) -> None:
    """The batches as a table on stdout."""
    table = Table(box=None, header_style="bold")
    longest = max((len(batch["id"]) for batch in batches), default=0)
    for name in COLUMNS:
        table.add_column(name, overflow="fold", min_width=longest if name == "id" else None)  # so that it can be copied
    for batch in batches:
        counts = _counts(batch)
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(batch["created_at"]))
        figures = (str(counts[name]) for name in ("completed", "failed", "total"))
        table.add_row(batch["id"], batch["status"], *figures, batch["endpoint"], created)
    Console().print(table)


def _counts(batch: Json) -> dict[str, int]:
    return {"total": 0, "completed": 0, "failed": 0, **(batch.get("request_counts") or {})}
