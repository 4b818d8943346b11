"""One child process: in a session of its own, tied to this process's life, its output in a log file that is appended
to, set aside when it has grown, and quoted when the child fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shared.process.tether import tied

GRACE_S = 10.0
MAX_LOG_BYTES = 10 * 1024 * 1024
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. ``log`` gets stderr, and stdout too unless that is captured. ``environ``: added to this process's
    own. ``grace_s``: that it has from SIGTERM on to end by itself."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = GRACE_S


class Process:
    """A started command. The terminal's Ctrl-C does not reach it; SIGKILL of this process does, on Linux."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        """``log_start``: the bytes that were in the log before."""
        self._process = process
        self._log = log
        self._log_start = log_start
        self._ended = False

    @classmethod
    async def start(cls, command: Command, *, capture_stdout: bool = False) -> Process:
        """Raises OSError where the program cannot be run."""
        with open_log(command.log) as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *tied(*command.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if capture_stdout else log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **command.environ},
            )
        return cls(process, command.log, log_start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_words(self) -> str:
        """The last lines that it has logged; nothing of an earlier process."""
        return tail(self._log, start=self._log_start)

    async def wait(self) -> int:
        """The exit status, -N for signal N. Whatever the process left running is killed."""
        status = await self._process.wait()
        self.kill()
        self._ended = True
        return status

    async def output(self) -> str:
        """Wait for the end; what was written to the captured stdout."""
        stdout, _ = await self._process.communicate()
        await self.wait()
        return stdout.decode(errors="replace")

    async def terminate(self, grace_s: float) -> int:
        """SIGTERM; after ``grace_s`` SIGKILL. The exit status."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            return await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the process and all that it started; nothing where they have ended."""
        if self._ended:  # the number may be another group's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(status: int) -> str:
    """ "exit status 3", "signal SIGKILL", "signal 40": not all have names."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def open_log(path: Path) -> BinaryIO:
    """Open for appending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bound_log(path)
    return path.open("ab")


def bound_log(path: Path) -> None:
    """Of a file over the bound the contents become ``NAME.log.1``, in place of those before. Whoever appends to it goes
    on; lines that come meanwhile may be lost."""
    with contextlib.suppress(OSError):  # a disk that takes no writes takes no lines either
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            with contextlib.suppress(OSError):  # no room for a copy is no reason to keep more
                shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def tail(path: Path, max_lines: int = 20, start: int = 0) -> str:
    """The last lines, from the byte ``start`` on, or of all where it has been cut; empty where there is none that can
    be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(start if start <= size else 0, size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-max_lines:])
