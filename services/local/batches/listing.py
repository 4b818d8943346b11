"""Batches as people read them."""

import time

from rich.table import Table

from services.local.batches.batch import counts_of
from services.local.commands.output import stdout_console
from services.local.commands.server import Json

COLUMNS = ("id", "status", "done", "failed", "left", "total", "endpoint", "created")
NARROW_COLUMNS = ("id", "status", "done", "failed", "total", "created")
WIDE = 122  # columns of a terminal that all of them need


def print_batches(*batches: Json) -> None:
    """A table on stdout, with fewer columns where that is narrow; models where they are of several."""
    console = stdout_console()
    columns, created_form = (COLUMNS, "%Y-%m-%d %H:%M:%S") if console.width >= WIDE else (NARROW_COLUMNS, "%m-%d %H:%M")
    if len({batch.get("model") for batch in batches} - {None}) > 1:
        columns = (*columns[:2], "model", *columns[2:])
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ignore" if name == "id" else "ellipsis")  # to be copied whole
    for batch in batches:
        counts = counts_of(batch)
        created = time.strftime(created_form, time.localtime(batch["created_at"]))
        cells = batch | counts | {"created": created, "done": counts["completed"], "model": batch.get("model") or ""}
        table.add_row(*(str(cells[name]) for name in columns))
    console.print(table)
