"""Tables that overload and long runs share."""

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from benchmarks.harness.table import Result, Results, Row
from benchmarks.reliability.kinds.tally import Tally

NUM_WORDS = 6


def tally_rows(tallies: Sequence[Tally]) -> Iterator[Row | str]:
    """A row a kind, and below what refusals and failures said."""
    for tally in tallies:
        yield {
            "kind": tally.name,
            "sent": f"{tally.num_sent:,}",
            "served": f"{tally.num_served:,}",
            "refused": f"{tally.num_refused:,}",
            "without Retry-After": f"{tally.without_retry.total():,}",
            "failed": f"{tally.num_failed:,}",
            "cut off at the end": f"{tally.num_sent - tally.num_served - tally.num_refused - tally.num_failed:,}",
        }
    for tally in tallies:
        for what, words in (("refused", tally.refused), ("failed", tally.failed)):
            for why, times in words.most_common(NUM_WORDS):
                yield f"{tally.name}, {what} {times:,} times: {why}"


def with_file(results: Results, file: Path) -> Results:
    """The same; a picture is in ``file`` too."""
    for result in results:
        if isinstance(result, Result):
            result.picture.savefig(file)
        yield result


def end_cut_short(stopped_by: signal.Signals | None) -> None:
    """To be called last. Raises Exit for a run that a signal has ended: what has been shown of it is not kept."""
    if stopped_by is not None:
        print("cut short: what is shown is not kept", file=sys.stderr)
        raise typer.Exit(128 + stopped_by)
