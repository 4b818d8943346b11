"""``slackwater key create | list | revoke``."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from services.local.commands.parameters import BusOptions, JsonOption
from services.local.stack.keys import Keys, open_keys
from shared.json_text import json_text
from shared.protocol.api_keys import ApiKeyRecord
from shared.settings.command_options import with_option_groups

Answer = TypeVar("Answer")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; A-Z, a-z, 0-9, _ and -.")]

key_app = typer.Typer(no_args_is_help=True)


@key_app.command()
@with_option_groups
def create(
    *,
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
    stack: BusOptions,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this once. It is valid at once, whether the stack runs or not."""
    key = _with_keys(stack, lambda keys: keys.create(name, weight, requests_per_minute, tokens_per_minute))
    if as_json:
        print(json_text({"name": name, "key": key}))
    else:
        print(key)
        print("Keep it: it is not shown again.", file=sys.stderr)


@key_app.command("list")
@with_option_groups
def list_keys(stack: BusOptions, as_json: JsonOption = False) -> None:
    """List the keys, without what is secret of them."""
    records = _with_keys(stack, Keys.all)
    if as_json:
        fields = map(msgspec.structs.asdict, records)
        print(json_text([{name: value for name, value in each.items() if name != "key_hash"} for each in fields]))
    else:
        _print_table(records)


@key_app.command()
@with_option_groups
def revoke(name: KeyName, stack: BusOptions) -> None:
    """Make a key invalid at once; what it has begun is finished."""
    _with_keys(stack, lambda keys: keys.revoke(name))
    print(f"revoked {name}")


def _with_keys(stack: BusOptions, ask: Callable[[Keys], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        async with open_keys(stack.data_dir, stack.nats) as keys:
            return await ask(keys)

    return asyncio.run(run())


def _print_table(records: list[ApiKeyRecord]) -> None:
    columns = ("name", "key", "made", "weight", "requests/min", "tokens/min")
    table = Table(*columns, box=None, header_style="bold")
    for record in records:
        made = datetime.fromtimestamp(record.created_at, UTC).isoformat(" ", "minutes")
        limits = [
            f"{limit:,}" if limit else "no limit" for limit in (record.requests_per_minute, record.tokens_per_minute)
        ]
        table.add_row(record.name, f"...{record.hint}", made, f"{record.weight:g}", *limits)
    Console().print(table)
