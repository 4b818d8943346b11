"""Batches as people read them."""

import time

from rich.table import Table

from services.local.batches.batch import counts_of
from services.local.commands.output import stdout_console
from services.local.commands.server import Json

COLUMNS = ("id", "status", "model", "done", "failed", "left", "total", "endpoint", "created")
# Where they do not fit, in turn.
LEFT_OUT = ("endpoint", "left", "total", "created", "failed", "model", "done", "status")
GAP = 2  # between columns
LONG_TIME, SHORT_TIME = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M"


def print_batches(*batches: Json) -> None:
    """A table on stdout, with as many columns as fit; models where they are of several."""
    console = stdout_console()
    columns, time_form = list(COLUMNS), LONG_TIME
    if len({batch.get("model") for batch in batches} - {None}) <= 1:
        columns.remove("model")
    if _width(columns, batches, time_form) > console.width:
        time_form = SHORT_TIME
    for name in LEFT_OUT:
        if name in columns and _width(columns, batches, time_form) > console.width:
            columns.remove(name)
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ignore")  # an id is to be copied whole
    for batch in batches:
        table.add_row(*(_cell(batch, name, time_form) for name in columns))
    console.print(table)


def _width(columns: list[str], batches: tuple[Json, ...], time_form: str) -> int:
    cells = (max(len(name), *(len(_cell(batch, name, time_form)) for batch in batches), 0) for name in columns)
    return sum(cells) + GAP * (len(columns) - 1)


def _cell(batch: Json, name: str, time_form: str) -> str:
    if name == "created":
        return time.strftime(time_form, time.localtime(batch["created_at"]))
    counts = counts_of(batch)
    return str(counts["completed"] if name == "done" else counts[name] if name in counts else batch.get(name) or "")
