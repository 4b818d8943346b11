"""``slackwater batch submit | list | get | cancel``."""

from pathlib import Path
from typing import Annotated

import typer

from services.local.commands.batch import batches
from services.local.commands.batch.batches import ENDPOINTS
from services.local.commands.parameters import JsonOption, show
from services.local.commands.server import ServerOptions
from shared.settings.command_options import one_of, with_option_groups

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
        batch = batches.submit(client, file, endpoint)
        if wait or output:
            batch = batches.wait(client, batch["id"])
        show(batch, as_json, batches.print_table)
        if output and (batch.get("output_file_id") or batch.get("error_file_id")):
            batches.fetch(client, batch, output)
        if wait or output:
            batches.require_completed(batch)


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
    show(page, as_json, lambda page: batches.print_table(*page["data"]))


@batch_app.command()
@with_option_groups
def get(batch_id: BatchId, server: ServerOptions, output: OutputOption = None, as_json: JsonOption = False) -> None:
    """Show a batch; with --output, fetch its results."""
    with server.client() as client:
        batch = client.get(f"/v1/batches/{batch_id}")
        show(batch, as_json, batches.print_table)
        if output:
            batches.fetch(client, batch, output)


@batch_app.command()
@with_option_groups
def cancel(batch_id: BatchId, server: ServerOptions, as_json: JsonOption = False) -> None:
    """Cancel a batch; what it has finished is kept."""
    with server.client() as client:
        show(client.post(f"/v1/batches/{batch_id}/cancel"), as_json, batches.print_table)
