"""The code of another version beside this one, and processes that run it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from services.local.stack.processes.process import Command

ROOT = Path(__file__).parents[3]


def check_out(revision: str, folder: Path) -> Path:
    """The files of a revision of this repository, in a new ``folder``. Raises ValueError where it has none."""
    found = subprocess.run(("git", "-C", str(ROOT), "archive", revision), capture_output=True, check=False)
    if found.returncode:
        raise ValueError(f"{revision} cannot be had: {found.stderr.decode().strip()}")
    folder.mkdir(parents=True)
    subprocess.run(("tar", "-x", "-C", str(folder)), input=found.stdout, check=True)
    return folder


def of_version(command: Command, folder: Path) -> Command:
    """A service's command by the code in ``folder``. Its settings come by the environment, of which each version reads
    what it knows."""
    python, option, module, *words = command.argv
    flags = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    settings = {f"SLACKWATER_{name.replace('-', '_').upper()}": value for name, value in flags.items()}
    path = os.pathsep.join((str(folder), command.environ.get("PYTHONPATH", "")))
    argv = ("env", "-C", str(folder), python, option, module)
    return replace(command, argv=argv, environ={**settings, **command.environ, "PYTHONPATH": path})
