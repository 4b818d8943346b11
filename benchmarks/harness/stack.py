"""Services as processes of their own, on a bus of their own, which end with the benchmark."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from benchmarks.harness.command import model_folder
from services.local.stack.machine import free_port
from services.local.stack.service_commands import nats_binary

READY_S = 120.0
POLL_S = 0.05


class Stack:
    """Services by name. What a gateway serves is at ``url``."""

    def __init__(self, store: Path) -> None:
        self.processes: dict[str, psutil.Popen] = {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        nats_port = free_port()
        self.nats_url = f"nats://127.0.0.1:{nats_port}"
        self._spawn("nats-server", nats_binary(), "-a", "127.0.0.1", "-p", str(nats_port), "-js", "-sd", str(store))

    def start(self, service: str, *options: str, name: str = "") -> None:
        """``name``: else the service's own."""
        own = ("--port", str(self.port)) if service == "gateway" else ()
        common = ("--nats", self.nats_url, "--log-level", "error", "--model-path", str(model_folder()), *own)
        module = f"services.{service.replace('-', '_')}"
        self._spawn(name or service, sys.executable, "-m", module, *common, *options)

    def wait_ready(self) -> None:
        """Until the gateway is, with an executor. Raises TimeoutError."""
        wait_until(lambda: answers(f"{self.url}/ready"))

    def reap(self, name: str) -> None:
        """End it, if it has not ended."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def _spawn(self, name: str, *command: str) -> None:
        self.processes[name] = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def stack() -> Iterator[Stack]:
    """With nothing but a nats-server so far."""
    with TemporaryDirectory() as store:
        made = Stack(Path(store))
        try:
            yield made
        finally:
            for name in reversed([*made.processes]):
                made.reap(name)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).is_success
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float = READY_S, period_s: float = POLL_S) -> None:
    """For what has no event. Raises TimeoutError."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not after {timeout_s:.0f} s")
        time.sleep(period_s)
