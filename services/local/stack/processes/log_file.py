"""Log files of child processes: appended to, set aside when they have grown, and quoted when a child fails."""

from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 10 * 1024 * 1024
TAIL_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """Open for appending. A file over the bound is first renamed to ``NAME.log.1``, replacing the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def tail(path: Path, max_lines: int = 20) -> str:
    """The last lines; empty where there is no file."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-max_lines:])
