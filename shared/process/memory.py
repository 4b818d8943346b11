"""The machine's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path


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
