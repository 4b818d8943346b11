"""Services as processes of their own, on a bus of their own, which end with the benchmark; and what processes take of
the machine for some time."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from benchmarks.harness.command import model_folder
from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.machine import free_port
from services.local.stack.service_commands import LOCAL_HOSTS, SYNC_INTERVAL, nats_argv
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole

READY_S, POLL_S, SAMPLE_S = 120.0, 0.05, 0.1
MIB = 2**20


class Stack:
    """Services by name. What a gateway serves is at ``url``."""

    def __init__(self, store: Path, sync_interval: str = SYNC_INTERVAL, is_secured: bool = False) -> None:
        """``is_secured``: its bus is encrypted, and lets in roles only, as that of ``slackwater up``."""
        self.processes: dict[str, psutil.Popen] = {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        nats_port = free_port()
        self.nats_url = f"{'tls' if is_secured else 'nats'}://127.0.0.1:{nats_port}"
        self._access = BusFolder(store / "bus") if is_secured else None
        access = ""
        if self._access is not None:
            self._access.ensure(LOCAL_HOSTS)
            access = self._access.server_config()
        argv = nats_argv(store / "nats.conf", store / "nats", nats_port, sync_interval, access)
        self._spawn("nats-server", *argv)

    def address(self, role: BusRole) -> BusAddress:
        """As a process of the role is let in."""
        return BusAddress(self.nats_url) if self._access is None else self._access.address(self.nats_url, role)

    def start(self, service: str, *options: str, name: str = "") -> None:
        """``name``: else the service's own, with a hyphen."""
        own = ("--port", str(self.port)) if service == "gateway" else ()
        common = ("--nats", self.nats_url, "--log-level", "error", "--model-path", str(model_folder()), *own)
        self._spawn(name or service.replace("_", "-"), sys.executable, "-m", f"services.{service}", *common, *options)

    def reap(self, name: str) -> None:
        """End it, if it has not ended."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def _spawn(self, name: str, *command: str) -> None:
        self.processes[name] = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def stack(sync_interval: str = SYNC_INTERVAL, is_secured: bool = False, **services: Sequence[str]) -> Iterator[Stack]:
    """A nats-server and these services with their options, begun in this order; the gateway among them is ready."""
    with TemporaryDirectory() as store:
        made = Stack(Path(store), sync_interval, is_secured)
        try:
            for service, options in services.items():
                made.start(service, *options)
            if services:
                wait_until(lambda: answers(f"{made.url}/ready"))
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


@dataclass(slots=True)
class Usage:
    """Known at the end: seconds by the clock; processor time, memory before and the most meanwhile, of each process."""

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    before_mib: dict[str, float] = field(default_factory=dict)
    most_mib: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def usage_of(processes: Mapping[str, psutil.Process]) -> Iterator[Usage]:
    """While the context lasts. Memory is looked at in a thread of its own."""
    usage, ended = Usage(before_mib=_mib(processes)), threading.Event()
    usage.most_mib = dict(usage.before_mib)

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            for name, mib in _mib(processes).items():
                usage.most_mib[name] = max(usage.most_mib[name], mib)

    sampler = threading.Thread(target=sample)
    start_s, cpu_s = time.perf_counter(), _cpu_s(processes)
    sampler.start()
    try:
        yield usage
    finally:
        usage.seconds = time.perf_counter() - start_s
        usage.cpu_s = {name: used - cpu_s[name] for name, used in _cpu_s(processes).items()}
        ended.set()
        sampler.join()


def _mib(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: process.memory_info().rss / MIB for name, process in processes.items()}


def _cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
