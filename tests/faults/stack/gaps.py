"""When a process was not there, and when none of several was."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tests.checker.history import Process

Gaps = list[tuple[float, float]]  # seconds, in their order, none that touches another
BEGUN_S = 5.0  # what has said that it serves may be found by others so much later


def gaps_of(record: Process, starts_s: float) -> Gaps:
    """Each from its end, or from when it was told to end, until it serves; that takes ``starts_s`` where it has not
    said so, 0 for one that is there as soon as it was started."""
    gaps: Gaps = []
    from_s = -math.inf
    for start in record.starts:
        begins_s = start.at_s + starts_s
        if starts_s and start.started_s is not None:
            begins_s = min(begins_s, start.started_s + BEGUN_S)
        gaps.append((from_s, begins_s))
        ends = [each for each in (start.told_s, start.ended_s) if each is not None]
        from_s = min(ends, default=math.inf)
    return _joined([*gaps, (from_s, math.inf)])


def in_all(of_each: Iterable[Gaps]) -> Gaps:
    """What lies in a gap of each."""
    common: Gaps = [(-math.inf, math.inf)]
    for gaps in of_each:
        both = [(max(a_s, b_s), min(to_s, until_s)) for a_s, to_s in common for b_s, until_s in gaps]
        common = [(from_s, to_s) for from_s, to_s in both if from_s < to_s]
    return common


def _joined(gaps: Gaps) -> Gaps:
    joined: Gaps = []
    for from_s, to_s in gaps:
        if joined and from_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], to_s))
        elif from_s < to_s:
            joined.append((from_s, to_s))
    return joined
