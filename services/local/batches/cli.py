"""``slackwater batch``: list, get, cancel and delete; the commands that run one are in ``commands``."""

import sys
from typing import Annotated

import typer

from services.local.batches import commands
from services.local.batches.answer_files import AnswerFiles
from services.local.batches.batch import FIELDS, batches_of, describe_end, errors_of, has_ended
from services.local.batches.ending import KEPT, MAX_ERRORS_SHOWN, kept, show_batches
from services.local.batches.listing import print_batches
from services.local.batches.options import BatchId, ForceOption, OutputOption
from services.local.commands.parameters import JsonOption, show
from services.local.commands.server import ServerOptions
from shared.errors import ApiError
from shared.json_text import json_text
from shared.settings.command_options import with_option_groups

batch_app = typer.Typer(no_args_is_help=True)
batch_app.command()(commands.submit)


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
        page = client.get("/v1/batches", needs=("data",), limit=limit, after=after)
    show(page, as_json, lambda page: print_batches(*page["data"]))


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
    """Show a batch, or those of a job; with --output, fetch a batch's results as the API has them."""
    files = AnswerFiles(output, force)
    files.require(None)
    with server.client() as client:
        batches = batches_of(client, batch_id)
        show_batches(batch_id, batches, as_json)
        for batch in filter(errors_of, batches):
            print(describe_end(batch, MAX_ERRORS_SHOWN), file=sys.stderr)
        if output is None:
            return
        if len(batches) > 1:
            again = f"slackwater batch results {batch_id} --output FILE"
            raise ApiError(f"{batch_id} is a job of {len(batches)} batches; fetch their answers: {again}")
        with kept(KEPT, f"slackwater batch get {batch_id} --output FILE"):
            num_files = files.fetch(client, batches[0])
    if not num_files:
        raise ApiError(f"batch {batch_id} has no results: it is {batches[0]['status']}")


batch_app.command()(commands.wait)
batch_app.command()(commands.results)
batch_app.command()(commands.retry)


@batch_app.command()
@with_option_groups
def cancel(batch_id: BatchId, server: ServerOptions, as_json: JsonOption = False) -> None:
    """Cancel a batch, or those of a job that have not ended; what is finished is kept."""
    with server.client() as client:
        batches = batches_of(client, batch_id)
        cancelled = [
            batch
            if len(batches) > 1 and has_ended(batch)
            else client.post(f"/v1/batches/{batch['id']}/cancel", needs=FIELDS)
            for batch in batches
        ]
        show_batches(batch_id, cancelled, as_json)


@batch_app.command()
@with_option_groups
def delete(
    batch_id: BatchId,
    server: ServerOptions,
    files: Annotated[bool, typer.Option("--files", help="With its input, output and error file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Forget a batch that has ended, or those of a job; their files stay unless --files is given."""
    with server.client() as client:
        batches = batches_of(client, batch_id)
        for batch in batches:
            if not has_ended(batch):
                raise ApiError(f"batch {batch['id']} is {batch['status']}; only what has ended can be deleted")
        asked = {"files": "true"} if files else {}
        deleted = [client.delete(f"/v1/batches/{batch['id']}", **asked) for batch in batches]
    for each in deleted:
        print(json_text(each) if as_json else f"{each['id']} is deleted")
