"""Where a table comes from: when, by which command, of which code, on which machine and with which seed."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from services.local.stack.machine import gpus
from shared.process.cores import usable_cores

ROOT = Path(__file__).parents[2]
OWN_SEEDS = "seeds in the code"
DIRTY = "-dirty"
VECTOR_FLAGS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}  # the most able first


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """None is unknown. ``date``: as 2026-11-23; ``revision``: git's, with "-dirty" where not all was committed."""

    command: str | None
    date: str | None
    revision: str | None
    machine: str | None
    seed: str | None

    def line(self) -> str:
        """Below the table."""
        code = None if self.command is None else f"`{self.command}`"
        at = None if self.revision is None else f"revision {self.revision}"
        known = {"command": code, "date": self.date, "revision": at, "machine": self.machine, "seed": self.seed}
        return f"*{'; '.join(value or f'{name} unknown' for name, value in known.items())}.*"


def origin_now(seed: object = None, words: Sequence[str] | None = None) -> Origin:
    """Of this process, before it measures. ``seed``: where it is not one of the code; ``words``: of its command line,
    else all."""
    return Origin(
        command=command_line(sys.argv[1:] if words is None else words),
        date=datetime.now(UTC).date().isoformat(),
        revision=revision(),
        machine=machine(),
        seed=OWN_SEEDS if seed is None else f"seed {seed}",
    )


def command_line(words: Sequence[str]) -> str:
    """As others would type it: files and folders by their names, and without where the table is kept."""
    module = getattr(sys.modules["__main__"].__spec__, "name", Path(sys.argv[0]).stem).removesuffix(".__main__")
    named, is_place = ["python", "-m", module], False
    for word in words:
        if not (is_place or word == "--keep"):
            path = Path(word)
            named.append(path.name if path.is_absolute() or ("/" in word and path.exists()) else word)
        is_place = word == "--keep"
    return shlex.join(named)


def revision(root: Path = ROOT) -> str | None:
    """None outside of a git repository. What was made of a page meanwhile is no change of the code."""
    commit = git(root, "rev-parse", "--short=12", "HEAD")
    changed = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs")
    return f"{commit}{DIRTY}" if commit and changed else commit


def git(root: Path, *words: str) -> str | None:
    """What it says; None where it fails."""
    try:
        return subprocess.run(("git", *words), cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> str:
    """CPU, cores that this process may use, memory, vector instructions, GPUs."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    able = set(flags[1].split() if flags else [])
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    vectors = [name for flag, name in VECTOR_FLAGS.items() if flag in able][:1]
    return ", ".join([model[1] if model else "a CPU", f"{usable_cores()} cores", memory, *vectors, *gpus()])
