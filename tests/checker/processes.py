"""No process ends but those that were made to; none grows; at the end nothing is left that nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tests.checker.history import History
from tests.checker.violation import Limits, Violation


def check_restarts(history: History, limits: Limits) -> Iterator[Violation]:
    for process in history.processes:
        for start in process.starts:
            if start.ended_s is not None and not start.reason:
                what = f"{process.name} ended by itself at {start.ended_s:.1f} s, status {start.status}"
                yield Violation("no process restarts by itself", what, process)


def check_memory(history: History, limits: Limits) -> Iterator[Violation]:
    """Of each process's last life, its median in the last third against that in the second."""
    for process in history.processes:
        if not process.memory or process.memory[-1][0] - process.memory[0][0] < limits.flat_after_s:
            continue
        third = (process.memory[-1][0] - process.memory[0][0]) / 3
        from_s, to_s = process.memory[0][0] + third, process.memory[0][0] + 2 * third
        before = median(num_bytes for at_s, num_bytes in process.memory if from_s <= at_s < to_s)
        after = median(num_bytes for at_s, num_bytes in process.memory if at_s >= to_s)
        if after - before > max(limits.growth_bytes, limits.growth * before):
            what = f"{process.name} from {before / 2**20:.0f} to {after / 2**20:.0f} MiB"
            yield Violation("memory is flat", what, process.memory)


def check_left_over(history: History, limits: Limits) -> Iterator[Violation]:
    for what, count in history.left_over.items():
        if count:
            yield Violation("nothing is left over", f"{what}: {count}", {what: count})
