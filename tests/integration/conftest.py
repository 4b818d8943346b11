"""A whole stack as its user has it: started by the ``slackwater`` command, reached over HTTP."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from services.local.stack.data_dir import DataDir
from services.local.stack.machine import free_port
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import READY_S, wait_until

SLACKWATER = (sys.executable, "-c", "from services.local.cli import main; main()")
MODEL = "smollm2-135m-instruct"
STOP_S = 60.0
REFUSED = "permissions violation"  # nats-server's words, of a subject that a role may not use


class LocalStack:
    """One ``slackwater up``. ``args`` are its options besides port and data directory."""

    def __init__(self, data_dir: Path, *args: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._args = args
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Returns the ready line, which is the first on stdout."""
        self.spawn()
        assert self.supervisor.stdout is not None
        line = self.supervisor.stdout.readline()
        assert line, f"slackwater up ended with {self.supervisor.wait()}:\n{self.stderr()}"
        return line.rstrip("\n")

    def spawn(self, stderr: int | None = None) -> None:
        """Start without waiting; ``stderr`` as subprocess has it, into a file otherwise."""
        command = [*SLACKWATER, "up", "--port", str(self.port), "--data-dir", str(self.data_dir), *self._args]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "up.stderr").open("wb") as file:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr or file, text=True)

    @property
    def supervisor(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def stderr(self) -> str:
        return (self.data_dir / "up.stderr").read_text()

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Another ``slackwater`` command against this stack."""
        environ = {**os.environ, "SLACKWATER_DATA_DIR": str(self.data_dir), "COLUMNS": "200"}
        return run_slackwater(*args, stdin=stdin, env=environ)

    def status(self) -> dict[str, Any]:
        """``slackwater status --json``."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def bus(self, role: BusRole) -> BusAddress:
        """As a process of the role is let in."""
        return msgspec.structs.replace(DataDir(self.data_dir).read_stack().bus, role=role)

    def pids(self) -> dict[str, int]:
        """Of every process that has one now, from the stack file."""
        stack = json.loads((self.data_dir / "stack.json").read_text())
        return {name: entry["pid"] for name, entry in stack["processes"].items() if entry["pid"]}

    def wait_healthy(self) -> dict[str, Any]:
        """Wait until every process answers "ok" and every executor beats; the status then."""
        found: dict[str, Any] = {}

        def healthy() -> bool:
            nonlocal found
            found = self.status()
            beating = len(found["executors"]) == sum(name.startswith("executor-") for name in self.pids())
            return beating and all(process["health"] == "ok" for process in found["processes"])

        wait_until(healthy, lambda: json.dumps(found.get("processes"), indent=2) + self.stderr(), READY_S)
        return found

    def stop(self, signum: int = signal.SIGINT) -> int:
        """Send the signal and wait; the exit status. Nothing more may have come on stdout."""
        self.supervisor.send_signal(signum)
        rest, _ = self.supervisor.communicate(timeout=STOP_S)
        assert rest == ""
        return self.supervisor.returncode

    def close(self) -> None:
        """Whatever the test did, nothing stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        require_permitted(self.data_dir / "logs")


@contextmanager
def configured_stack(folder: Path, config: str, models: str) -> Iterator[LocalStack]:
    """One of the slackwater.toml with this text, which says at its start that it has these models."""
    (folder / "slackwater.toml").write_text(config)
    made = LocalStack(folder / "stack", "--config", str(folder / "slackwater.toml"))
    try:
        assert made.start() == f"ready {made.url} model {models}"
        yield made
    finally:
        made.close()


def require_permitted(logs: Path) -> None:
    """No process did what its role may not do, nor wanted to."""
    refused = [line for log in logs.glob("*.log") for line in log.read_text().splitlines() if REFUSED in line.lower()]
    assert not refused, refused[:5]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def sim_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A ready stack with the sim engine, for all tests of a module."""
    stack = LocalStack(tmp_path_factory.mktemp("stack"), "--engine", "sim")
    try:
        stack.start()
        yield stack
    finally:
        stack.close()


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., LocalStack]]:
    """Stacks of a test's own, not yet started, each with its port and data directory."""
    made: list[LocalStack] = []

    def make(*args: str) -> LocalStack:
        made.append(LocalStack(tmp_path / f"stack-{len(made)}", *args))
        return made[-1]

    yield make
    for stack in made:
        stack.close()
