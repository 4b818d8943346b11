"""`slackwater batch`: submit a file of requests, watch it, fetch its results."""

import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from loadgen.progress import bars_on
from services.local.commands.server import ApiClient, Json
from shared.errors import ApiError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")  # what a batch's lines may ask for
FINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
POLL_S = 0.5  # the API has no event for a batch's progress
SPEED_S = 60.0  # over which the time left is estimated
COLUMNS = ("id", "status", "done", "failed", "total", "endpoint", "created")


def submit(client: ApiClient, file: Path, endpoint: str | None) -> Json:
    """Upload the file and create its batch. ``endpoint`` None: as the file's first line says. Raises ApiError."""
    endpoint = endpoint or first_endpoint(file)
    uploaded = client.upload(file, purpose="batch")
    body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
    return client.post("/v1/batches", body)


def first_endpoint(file: Path) -> str:
    """The ``url`` of the first request; the chat endpoint where the line has none, for the server to judge."""
    with file.open("rb") as lines:
        first = lines.readline()
    try:
        url = json.loads(first)["url"]
    except (ValueError, KeyError, TypeError):
        return ENDPOINTS[0]
    return url if url in ENDPOINTS else ENDPOINTS[0]


def wait(client: ApiClient, batch_id: str) -> Json:
    """Show a progress bar and an estimate of the time left on stderr until the batch has ended, a line for each new
    status where that is no terminal; the batch. Raises ApiError."""
    console = Console(stderr=True)
    status = ""
    columns = TextColumn("left"), TimeRemainingColumn()
    with bars_on(console, *columns, disable=not console.is_terminal, speed_estimate_period=SPEED_S) as progress:
        bar = progress.add_task("validating", total=None, facts="")
        while True:
            batch = client.get(f"/v1/batches/{batch_id}")
            _show_progress(progress, bar, batch)
            if batch["status"] != status and not (status and console.is_terminal):
                console.print(f"{batch_id} is {batch['status']}", highlight=False, markup=False, soft_wrap=True)
            status = batch["status"]
            if status in FINAL_STATUSES:
                return batch
            time.sleep(POLL_S)


def _show_progress(progress: Progress, bar: TaskID, batch: Json) -> None:
    counts = _counts(batch)
    done = counts["completed"] + counts["failed"]
    failed = f"{counts['failed']:,} failed" if counts["failed"] else ""
    progress.update(bar, description=batch["status"], completed=done, total=counts["total"] or None, facts=failed)


def fetch(client: ApiClient, batch: Json, output: Path) -> None:
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


def require_completed(batch: Json) -> None:
    """Raises ApiError with the batch's first errors where it ended in another way."""
    if batch["status"] == "completed":
        return
    errors = (batch.get("errors") or {}).get("data") or []
    lines = [
        f"  line {error['line']}: {error['message']}" if error.get("line") else f"  {error['message']}"
        for error in errors
    ]
    raise ApiError("\n".join([f"batch {batch['id']} is {batch['status']}", *lines[:10]]))


def print_table(*batches: Json) -> None:
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
