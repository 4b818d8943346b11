"""How much of its machine a process may use."""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from shared.process.control_groups import own_groups


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: no more than it may run on, or than a container or its system gives it the time
    of (cgroup v2), as ``docker run --cpus`` does. ``root``: of the files that tell."""
    there = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([there, *(max(1, math.ceil(share)) for share in _quotas(root))])


def _quotas(root: Path) -> Iterator[float]:
    """In cores, of each group that has one."""
    for group in own_groups(root):
        with contextlib.suppress(OSError, ValueError):  # ValueError: max, which is none
            quota_us, period_us = (group / "cpu.max").read_text().split()
            yield int(quota_us) / int(period_us)
