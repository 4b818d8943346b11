"""How commands about batches end: what they print, and their exit status."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import typer

from services.local.batches.batch import counts_of, describe_end, exit_status_of, is_whole
from services.local.batches.listing import print_batches
from services.local.batches.results import Written
from services.local.commands.parameters import show
from services.local.commands.server import Json
from shared.errors import ApiError, SlackwaterError

INTERRUPTED = 130
MAX_ERRORS_SHOWN = 10
KEPT = "the server keeps the batch and its results"
SOME_FAILED = 3


@contextlib.contextmanager
def kept(what: str, command: str) -> Iterator[None]:
    """What goes wrong from here on, also Ctrl-C, is told with the command that goes on."""
    try:
        yield
    except SlackwaterError as error:
        raise ApiError(f"{error}\n{what}: {command}") from error
    except KeyboardInterrupt as error:
        print(f"interrupted; {what}: {command}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error


def show_batches(id: str, batches: list[Json], as_json: bool) -> None:
    """A batch alone as the API has it; those of a job together."""
    if len(batches) == 1 and batches[0]["id"] == id:
        show(batches[0], as_json, print_batches)
    else:
        job: Json = {"id": id, "object": "list", "data": batches}
        show(job, as_json, lambda found: print_batches(*found["data"]))


def exit_as_they_ended(batches: list[Json], written: Written | None = None, why: str | None = None) -> None:
    """Where not every line is done: say on stderr what is not, and end the command with its exit status. ``written``:
    the answers of the batches and their retries, which may be all. ``why``: the command that fetches the reasons."""
    if written is not None and not written.failed and written.done:
        return
    said = "\n".join(describe_end(batch, MAX_ERRORS_SHOWN) for batch in batches if not is_whole(batch))
    if said:
        print(f"error: {said}", file=sys.stderr)
        if why is not None and any(counts_of(batch)["failed"] for batch in batches):
            print(f"their reasons: {why}", file=sys.stderr)
        raise typer.Exit(exit_status_of(batches))
    if written is not None and written.failed:
        print(f"error: {written.failed:,} lines have no answer", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)
