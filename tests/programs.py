"""Our programs as processes of their own that import nothing anew: a process that has imported them forks for each.

What a program does from its first line on is as under ``python -m``: its arguments, files, signals and exit status.
"""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

SLACKWATER = "services.local.cli"
IMPORTED = "tests.imported_programs"
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([IMPORTED])
STATUSES = threading.Lock()  # an exit status can be read once; of two threads that read it one would be told 255


class Program:
    """One process, with as much of ``subprocess.Popen`` as tests need. ``module``: as after ``python -m``, or
    SLACKWATER. What it prints goes to the files' ends; ``env``, where it is given, is all of its environment."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        stdout: Path,
        stderr: Path,
        stdin: Path = Path(os.devnull),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        environ = dict(os.environ if env is None else env)
        for printed in (stdout, stderr):
            printed.touch()  # whoever waits for what it prints may read before it runs
        files = (str(stdin), str(stdout), str(stderr))
        self._process = FORKING.Process(
            target=_become, args=(module, arguments, files, environ, str(cwd or Path.cwd()))
        )
        with STATUSES:  # it looks who has ended
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Minus the signal's number where one ended it."""
        with STATUSES:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        multiprocessing.connection.wait([self._process.sentinel], timeout_s)
        status = self.returncode
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout_s or 0.0)
        return status

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def stand_still(pid: int) -> None:
    """Returns when the process does, until it gets SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    process, until_s = psutil.Process(pid), time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < until_s, f"process {pid} goes on"
        time.sleep(0.001)


@contextlib.contextmanager
def no_more_files(pid: int) -> Iterator[None]:
    """The process can open none beside those that it has; Linux only."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    first_free = next(number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def fed_program(module: str, *arguments: str) -> Iterator[tuple[Program, Path]]:
    """One whose stdin is open until this process ends, and the file of what it prints; then it is killed."""
    with tempfile.TemporaryDirectory() as folder:
        stdin, stdout = Path(folder) / "stdin", Path(folder) / "stdout"
        os.mkfifo(stdin)
        feeding = os.open(stdin, os.O_RDWR)  # a FIFO that is opened to be written alone waits for its reader
        program = Program(module, *arguments, stdin=stdin, stdout=stdout, stderr=Path(os.devnull))
        try:
            yield program, stdout
        finally:
            program.kill()
            program.wait()
            os.close(feeding)


def run_slackwater(
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120.0,
) -> "subprocess.CompletedProcess[str]":
    """A ``slackwater`` command, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        given, stdout, stderr = (Path(folder) / name for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin)
        program = Program(SLACKWATER, *arguments, stdin=given, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
        try:
            status = program.wait(timeout_s)
        finally:
            program.kill()
        return subprocess.CompletedProcess(("slackwater", *arguments), status, stdout.read_text(), stderr.read_text())


def without_torch() -> None:
    """In a program that has no engine: NIXL imports torch only to learn whether it is built for CUDA."""
    sys.modules["torch"] = None  # type: ignore[assignment]


def _become(
    module: str, arguments: tuple[str, ...], files: tuple[str, str, str], environ: dict[str, str], cwd: str
) -> None:
    assert IMPORTED in sys.modules, "the process that forks leaves out what it cannot import"
    stdin, *printed = files
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    if module == SLACKWATER:
        from services.local.cli import main

        main()
    else:
        sys.modules.pop(f"{module}.__main__", None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
