"""No process ends but those that were made to, and these in order and in time; none meets an error that it did not
foresee; none grows; at the end nothing is left that nobody needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from statistics import median

from tests.checker.history import Event, History, Start
from tests.checker.violation import Limits, Violation

STORED = ("messages of ", "objects of ")  # what is left over in the bus's streams


def check_restarts(history: History, limits: Limits) -> Iterator[Violation]:
    for process in history.processes:
        for start in process.starts:
            if start.ended_s is not None and not start.reason:
                what = f"{process.name} ended by itself at {start.ended_s:.1f} s, status {start.status}: {start.words}"
                yield Violation("no process restarts by itself", what, process.starts)


def check_endings(history: History, limits: Limits) -> Iterator[Violation]:
    """Who is told to end is gone in its time, which begins anew when something that was done to it or to the bus is
    over."""
    for process in history.processes:
        events = [event for event in history.events if event.concerns(process.name)]
        for start in process.starts:
            if start.told_s is None or start.grace_s is None:
                continue
            until_s = history.over_s if start.ended_s is None else start.ended_s
            if until_s >= _ends_by(start, start.grace_s + limits.late_s, events):
                how = "has not ended" if start.ended_s is None else f"ended, status {start.status},"
                what = f"{process.name} was told to at {start.told_s:.1f} s, and {how} at {until_s:.1f} s"
                yield Violation("who is told to end ends", what, process.starts)


def _ends_by(start: Start, grace_s: float, events: Iterable[Event]) -> float:
    assert start.told_s is not None
    by_s = start.told_s + grace_s
    for event in sorted(events, key=lambda event: event.at_s):
        if event.overlaps(start.told_s, by_s, after_s=grace_s):
            by_s = math.inf if event.until_s is None else max(by_s, event.until_s + grace_s)
    return by_s


def check_errors(history: History, limits: Limits) -> Iterator[Violation]:
    for error in history.unforeseen:
        yield Violation("every error is handled", error, error)


def check_memory(history: History, limits: Limits) -> Iterator[Violation]:
    """Of each process's last life, its median in the last third against that in the second, without the largest step
    from one look to the next: something that is read once, when it is needed first, may be large."""
    for process in history.processes:
        if not process.memory or process.memory[-1][0] - process.memory[0][0] < limits.flat_after_s:
            continue
        third = (process.memory[-1][0] - process.memory[0][0]) / 3
        from_s, to_s = process.memory[0][0] + third, process.memory[0][0] + 2 * third
        before = median(num_bytes for at_s, num_bytes in process.memory if from_s <= at_s < to_s)
        after = median(num_bytes for at_s, num_bytes in process.memory if at_s >= to_s)
        once = max(later - earlier for (_, earlier), (_, later) in itertools.pairwise(process.memory))
        if after - before - once > max(limits.growth_bytes, limits.growth * before):
            what = f"{process.name} from {before / 2**20:.0f} to {after / 2**20:.0f} MiB"
            yield Violation("memory is flat", what, process.memory)


def check_left_over(history: History, limits: Limits) -> Iterator[Violation]:
    """Of a batch whose record was lost nobody knows that what is stored of it can go."""
    for what, count in history.left_over.items():
        if count and not (history.not_synced and what.startswith(STORED)):
            yield Violation("nothing is left over", f"{what}: {count}", {what: count})
