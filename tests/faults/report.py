"""What a campaign prints: its table, and for whatever is wrong what happened and who saw what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pprint import pformat
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.checker.history import Event, Stream
from tests.checker.violation import Violation
from tests.faults.summary import Summary

MAX_VIOLATIONS = 10  # that are shown whole
MAX_CHARS = 2000  # of what a client saw


def table(summary: Summary) -> Table:
    """One line for each kind of event."""
    pauses = summary.pauses
    shown = Table("event", "times", "longest pause beside it, s", "beside no other, s", title="Faults")
    for kind, count in sorted(summary.events.items()):
        shown.add_row(kind, str(count), _seconds(pauses.beside.get(kind)), _seconds(pauses.beside_alone.get(kind)))
    shown.add_row("all", str(summary.events.total()), _seconds(pauses.longest_s), "")
    return shown


def totals(summary: Summary) -> list[str]:
    """In words."""
    return [
        f"{summary.streams.total()} streams: {_counted(summary.streams)}",
        f"{summary.batches.total()} batches, {summary.num_lines} lines checked: {_counted(summary.batches)}",
        f"{summary.num_files} files, {summary.num_keys} keys; ends of processes: {_counted(summary.ends)}",
        f"requests that moved: {summary.takers.total()}",
        f"{len(summary.violations)} violations",
    ]


def show_violations(console: Console, found: Sequence[Violation], events: Sequence[Event]) -> None:
    """The events with their times, and what each client saw."""
    console.print("[bold]Events, seconds since the beginning[/bold]")
    for event in sorted(events, key=lambda event: event.at_s):
        until = "" if event.until_s is None else f" to {event.until_s:.2f}"
        console.print(
            f"  {event.number} {event.at_s:.2f}{until} {event.kind}: {event.target} {event.note}", markup=False
        )
    for violation in found[:MAX_VIOLATIONS]:
        console.print(f"{violation.invariant}: {violation.what}", style="red", markup=False, soft_wrap=True)
        console.print(_seen(violation.seen), markup=False, highlight=False, soft_wrap=True)
    if len(found) > MAX_VIOLATIONS:
        console.print(f"and {len(found) - MAX_VIOLATIONS} more")


def _seen(seen: object) -> str:
    if isinstance(seen, Stream):
        return _of_stream(seen)
    record: Any = asdict(seen) if is_dataclass(seen) and not isinstance(seen, type) else seen
    text = pformat(record, width=160, compact=True, sort_dicts=False)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS // 2]}\n...\n{text[-MAX_CHARS // 2 :]}"


def _of_stream(stream: Stream) -> str:
    from_s, to_s = stream.longest_pause
    ended = "never" if stream.ended_s is None else f"{stream.ended_s:.2f}"
    return (
        f"{'flex' if stream.is_flex else 'online'} {stream.name} at {stream.server}, sent {stream.sent_s:.2f}, ended "
        f"{ended}: {stream.ended.value}, status {stream.status}, {stream.error}; {len(stream.pieces)} pieces, the "
        f"longest pause from {from_s:.2f} to {to_s:.2f}\n  sent  {stream.sent[:300]}\n  came  {stream.text!r}\n  right "
        f"{stream.right!r}"
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _counted(counts: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
