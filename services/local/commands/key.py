"""``slackwater key create | list | revoke``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.local.commands.parameters import DataDirOption, JsonOption, NatsOption
from services.local.stack.options import DEFAULT_DATA_DIR
from shared.json_text import json_text

if TYPE_CHECKING:
    from shared.protocol.api_keys import ApiKeyRecord

key_app = typer.Typer(no_args_is_help=True)

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; A-Z, a-z, 0-9, _ and -.")]


@key_app.command()
def create(
    name: KeyName,
    weight: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1000.0,
            help="Its share against 1 of others: of batches, and under --online-order vtc online.",
        ),
    ] = 1.0,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="At most so many; by default no limit.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Of prompts and answers, at most so many; by default no limit.")
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this once. It is valid at once, whether the stack runs or not."""
    key = asyncio.run(_create(data_dir, nats, name, weight, requests_per_minute, tokens_per_minute))
    if as_json:
        print(json_text({"name": name, "key": key}))
    else:
        print(key)
        print("Keep it: it is not shown again.", file=sys.stderr)


@key_app.command("list")
def list_keys(data_dir: DataDirOption = DEFAULT_DATA_DIR, nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """List the keys, without what is secret of them."""
    records = asyncio.run(_list(data_dir, nats))
    if as_json:
        shown = [{key: value for key, value in _fields(record).items() if key != "key_hash"} for record in records]
        print(json_text(shown))
    else:
        _show(records)


@key_app.command()
def revoke(name: KeyName, data_dir: DataDirOption = DEFAULT_DATA_DIR, nats: NatsOption = None) -> None:
    """Make a key invalid at once; what it has begun is finished."""
    asyncio.run(_revoke(data_dir, nats, name))
    print(f"revoked {name}")


async def _create(data_dir: Path, nats: str | None, name: str, weight: float, rpm: int | None, tpm: int | None) -> str:
    from services.local.stack.keys import open_keys

    async with open_keys(data_dir, nats) as keys:
        return await keys.create(name, weight, rpm, tpm)


async def _list(data_dir: Path, nats: str | None) -> list[ApiKeyRecord]:
    from services.local.stack.keys import open_keys

    async with open_keys(data_dir, nats) as keys:
        return await keys.all()


async def _revoke(data_dir: Path, nats: str | None, name: str) -> None:
    from services.local.stack.keys import open_keys

    async with open_keys(data_dir, nats) as keys:
        await keys.revoke(name)


def _fields(record: ApiKeyRecord) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(record)


def _show(records: list[ApiKeyRecord]) -> None:
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    columns = ("name", "key", "made", "weight", "requests/min", "tokens/min")
    table = Table(*columns, box=None, header_style="bold")
    for record in records:
        made = datetime.fromtimestamp(record.created_at, UTC).isoformat(" ", "minutes")
        limits = [
            f"{limit:,}" if limit else "no limit" for limit in (record.requests_per_minute, record.tokens_per_minute)
        ]
        table.add_row(record.name, f"...{record.hint}", made, f"{record.weight:g}", *limits)
    Console().print(table)
