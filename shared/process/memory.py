"""The machine's memory, and when this process looks for garbage in its own."""

import gc
import os
import re
from pathlib import Path

ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000


def available_memory_bytes() -> int:
    """What a process can still take without swapping; where the system does not tell, all that there is."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return int(match.group(1)) * 1024
    return total_memory_bytes()


def total_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def collect_seldom() -> None:
    """A plan of 256 requests allocates and frees thousands of objects, none in a cycle. With Python's threshold of 700
    a collection would interrupt every plan, and in one of a hundred walk over all requests that wait: 0.1 s for
    100,000. Call once at start, when all modules are there; what exists then is never collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
