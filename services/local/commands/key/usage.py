"""What keys have used, as ``slackwater key usage`` shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from rich.table import Table

from services.local.commands.output import stdout_console
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of, month_of
from shared.watch.key_totals import KeyTotals

DAY_S = 24 * 3600.0


class DayUsage(msgspec.Struct, frozen=True):
    """Of one key in one day. ``batches``: what of all that batches have used."""

    day: str
    name: str
    all: KeyUsage
    batches: KeyUsage


class BudgetUse(msgspec.Struct, frozen=True):
    """Of one budget of one key; ``period``: day or month."""

    name: str
    period: str
    used_tokens: int
    budget_tokens: int


class UsageReport(msgspec.Struct, frozen=True):
    """Days in their order, of each the keys by their names."""

    days: list[DayUsage]
    budgets: list[BudgetUse]


def usage_report(
    usages: Iterable[tuple[UsagePlace, KeyUsage]],
    keys: list[ApiKeyRecord],
    name: str | None,
    num_days: int,
    now_s: float,
) -> UsageReport:
    """Of the last days, of one key or all; of the budgets of those keys that there are."""
    usages = [(place, usage) for place, usage in usages if name in (None, place.name)]
    first = day_of(now_s - (num_days - 1) * DAY_S)
    days: dict[tuple[str, str], list[KeyUsage]] = {}
    totals = KeyTotals()
    for place, usage in usages:
        totals.take(place, usage)
        if place.day >= first:
            of_day = days.setdefault((place.day, place.name), [KeyUsage(), KeyUsage()])
            of_day[0] += usage
            if place.is_batch:
                of_day[1] += usage
    shown = [DayUsage(*key, *days[key]) for key in sorted(days)]
    budgets = [use for key in keys if name in (None, key.name) for use in _budgets(key, totals, day_of(now_s))]
    return UsageReport(shown, budgets)


def _budgets(key: ApiKeyRecord, totals: KeyTotals, today: str) -> Iterable[BudgetUse]:
    for period, budget, since in (
        ("day", key.tokens_per_day, today),
        ("month", key.tokens_per_month, month_of(today)),
    ):
        if budget is not None:
            yield BudgetUse(key.name, period, totals.total(key.name, since).total_tokens, budget)


def print_usage(report: UsageReport) -> None:
    """Tables on stdout."""
    console = stdout_console()
    if not report.days:
        console.print("no tokens were used by keys in these days")
    else:
        table = Table(box=None, header_style="bold")
        table.add_column("day (UTC)")
        table.add_column("key", overflow="fold")
        for column in ("requests", "tokens in", "cached", "tokens out", "by batches"):
            table.add_column(column, justify="right")
        for each in report.days:
            table.add_row(each.day, each.name, *_counts(each.all), f"{each.batches.total_tokens:,}")
        console.print(table)
    for use in report.budgets:
        share = f"{use.used_tokens / use.budget_tokens:.0%}"
        console.print(
            f"{use.name}: {share} of this {use.period}'s {use.budget_tokens:,} tokens", highlight=False, soft_wrap=True
        )


def _counts(usage: KeyUsage) -> list[str]:
    counts: list[Any] = [usage.num_requests, usage.input_tokens, usage.cached_tokens, usage.output_tokens]
    return [f"{count:,}" for count in counts]
