"""The machine's memory, and when this process looks for garbage in its own."""

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

from shared.process.control_groups import own_groups

ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000


def available_memory_bytes(root: Path = Path("/")) -> int:
    """What a process can still take without swapping, or without being killed where a container or its system has a
    limit (cgroup v2); where the system does not tell, all that there is. ``root``: of the files that tell."""
    return min(_available_on_machine(root), *_left_of_limits(root))


def total_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_on_machine(root: Path) -> int:
    with contextlib.suppress(OSError):
        text = (root / "proc/meminfo").read_text(encoding="utf-8")
        if match := re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE):
            return int(match[1]) * 1024
    return total_memory_bytes()


def _left_of_limits(root: Path) -> Iterator[int]:
    """Of this process's group, and of each group that this one is in; those without a limit leave all."""
    yield total_memory_bytes()
    for group in own_groups(root):
        if (left := _left_in(group)) is not None:
            yield left


def _left_in(group: Path) -> int | None:
    """None where there is no limit. What files have in memory and nobody uses is given up before a limit is reached."""
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        idle = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used) + (int(idle[1]) if idle else 0))


def collect_seldom() -> None:
    """A plan of 256 requests allocates and frees thousands of objects, none in a cycle. With Python's threshold of 700
    a collection would interrupt every plan, and in one of a hundred walk over all requests that wait: 0.1 s for
    100,000. Call once at start, when all modules are there; what exists then is never collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
