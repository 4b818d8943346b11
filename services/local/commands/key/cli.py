"""``slackwater key create | change | list | revoke | usage``."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.table import Table

from services.local.commands.key.terms import KeyTermOptions
from services.local.commands.key.usage import UsageReport, print_usage, usage_report
from services.local.commands.output import stdout_console
from services.local.commands.parameters import BusOptions, JsonOption, show
from services.local.stack.keys import Keys, open_keys, unknown_key
from shared.json_text import json_text
from shared.protocol.access.api_keys import GIVEN_KEY, USER_PERMISSIONS, ApiKeyRecord, KeyTerms, shown_time
from shared.settings.command_options import with_option_groups

Answer = TypeVar("Answer")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; A-Z, a-z, 0-9, _ and -.")]

WHO_NEEDS_ONE = 'Clients need one where others can connect, or everywhere: [gateway] require_keys = "always".'

key_app = typer.Typer(no_args_is_help=True)


@key_app.command()
@with_option_groups
def create(*, name: KeyName, terms: KeyTermOptions, stack: BusOptions, as_json: JsonOption = False) -> None:
    """Make a key and show it, this once. It is valid at once, whether the stack runs or not. What is not named has no
    limit, but to be an admin it has to be named: --endpoints all."""
    agreed = KeyTerms(**({"endpoints": list(USER_PERMISSIONS)} | terms.named(time.time())))
    key = _with_keys(stack, lambda keys: keys.create(name, agreed), makes_store=True)
    if as_json:
        print(json_text({"name": name, "key": key}))
    else:
        print(key)
        print(f"Keep it: it is not shown again. {WHO_NEEDS_ONE}", file=sys.stderr)


@key_app.command()
@with_option_groups
def change(*, name: KeyName, terms: KeyTermOptions, stack: BusOptions) -> None:
    """Change what a key may do; who has it keeps it. What is not named stays as it is."""
    named = terms.named(time.time())
    if not named:
        raise typer.BadParameter("name what is to change")
    record = _with_keys(stack, lambda keys: keys.change(name, named))
    _print_table([record])


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


@key_app.command()
@with_option_groups
def usage(
    *,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of this key only.")] = None,
    days: Annotated[int, typer.Option(min=1, max=400, help="So many, the last one today.")] = 7,
    stack: BusOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the tokens that keys have used by day, of single requests and of batches, and what that is of their budgets.
    Gateways tell what they count every few seconds."""

    async def ask(keys: Keys) -> UsageReport:
        usages, there = await keys.usages(), await keys.all()
        known = (GIVEN_KEY, *(key.name for key in there), *(place.name for place, _ in usages))  # also a revoked one
        if name is not None and name not in known:
            raise unknown_key(name)
        return usage_report(usages, there, name, days, time.time())

    show(_with_keys(stack, ask), as_json, print_usage)


def _with_keys(stack: BusOptions, ask: Callable[[Keys], Awaitable[Answer]], makes_store: bool = False) -> Answer:
    async def run() -> Answer:
        async with open_keys(stack.data_dir, stack.asked, makes_store) as keys:
            return await ask(keys)

    return asyncio.run(run())


def _print_table(records: list[ApiKeyRecord]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("name", "key", "made", "weight", "may"):
        table.add_column(column, overflow="fold")
    for record in records:
        may = "; ".join(_terms(record, time.time()))
        table.add_row(record.name, f"...{record.hint}", _date(record.created_at), f"{record.weight:g}", may)
    stdout_console().print(table)


def _date(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d}"


def _permissions(record: ApiKeyRecord) -> str:
    if record.endpoints is None:
        return "all"
    return "all but admin" if record.endpoints == list(USER_PERMISSIONS) else ", ".join(record.endpoints)


def _terms(record: ApiKeyRecord, now_s: float) -> Iterator[str]:
    yield _permissions(record)
    if record.organization is not None:
        yield f"for {record.organization}"
    if record.models is not None:
        yield f"of {', '.join(record.models)}"
    if record.expires_at is not None:
        yield f"{'ended' if record.has_expired(now_s) else 'until'} {shown_time(record.expires_at)}"
    limits = {
        "requests a minute": record.requests_per_minute,
        "tokens a minute": record.tokens_per_minute,
        "tokens a day": record.tokens_per_day,
        "tokens a month": record.tokens_per_month,
        "stored bytes": record.max_stored_bytes,
        "open batches": record.max_open_batches,
        "queued tokens": record.max_queued_tokens,
    }
    yield from (f"{limit:,} {what}" for what, limit in limits.items() if limit is not None)
