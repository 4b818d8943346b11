"""``slackwater batch submit | list | get | cancel``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.local.commands.parameters import ENDPOINTS, DataDirOption, JsonOption, UrlOption, one_of
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.json_text import json_text

if TYPE_CHECKING:
    from services.local.commands.api_client import ApiClient, Json

batch_app = typer.Typer(no_args_is_help=True)

OutputOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write the results here, failed lines to NAME.errors.jsonl.")
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]


def _known_endpoint(value: str | None) -> str | None:
    return None if value is None else one_of("endpoint", ENDPOINTS)(value)


@batch_app.command()
def submit(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL, a request per line.")],
    endpoint: Annotated[
        str | None,
        typer.Option(callback=_known_endpoint, help=f"{' or '.join(ENDPOINTS)}; by default the first line's url."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the batch has ended.")] = False,
    output: OutputOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and start its batch. --output implies --wait."""
    from services.local.commands.batch import batches

    with _client(url, data_dir) as client:
        batch = batches.submit(client, file, endpoint)
        if wait or output:
            batch = batches.wait(client, batch["id"])
        _print(batch, as_json)
        if output and (batch.get("output_file_id") or batch.get("error_file_id")):
            batches.fetch(client, batch, output)
        if wait or output:
            batches.require_completed(batch)


@batch_app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this id.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """List batches, the newest first."""
    from services.local.commands.batch import batches

    with _client(url, data_dir) as client:
        page = client.get("/v1/batches", limit=limit, after=after)
    if as_json:
        print(json_text(page))
    else:
        batches.show_table(page["data"])


@batch_app.command()
def get(
    batch_id: BatchId,
    output: OutputOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show a batch; with --output, fetch its results."""
    from services.local.commands.batch import batches

    with _client(url, data_dir) as client:
        batch = client.get(f"/v1/batches/{batch_id}")
        _print(batch, as_json)
        if output:
            batches.fetch(client, batch, output)


@batch_app.command()
def cancel(
    batch_id: BatchId, url: UrlOption = None, data_dir: DataDirOption = DEFAULT_DATA_DIR, as_json: JsonOption = False
) -> None:
    """Cancel a batch; what it has finished is kept."""
    with _client(url, data_dir) as client:
        _print(client.post(f"/v1/batches/{batch_id}/cancel"), as_json)


def _client(url: str | None, data_dir: Path) -> ApiClient:
    from services.local.commands.api_client import ApiClient
    from services.local.commands.target import server_url

    return ApiClient(server_url(url, data_dir))


def _print(batch: Json, as_json: bool) -> None:
    """The whole batch, or one line that a person can read."""
    if as_json:
        print(json_text(batch))
        return
    from services.local.commands.batch import batches

    batches.show_table([batch])
