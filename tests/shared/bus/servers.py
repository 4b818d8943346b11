"""The two servers that the tests of the bus run against, to be killed and started again."""

import asyncio
import contextlib
import inspect
import json
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from services.local.stack.machine import free_port
from tests.conftest import nats_server_binary, wait_for_port
from tests.simulation.nats import MemoryServer

MAX_PAYLOAD = 1024**2


class Server(Protocol):
    """One server; ``url`` stays the same."""

    url: str

    def kill(self) -> None:
        """It ends at once; what it stored stays."""

    def start(self) -> None:
        """Again."""


class RealServer:
    """A nats-server process, its store in the folder; without one it stores nothing. ``most_bytes``: in the store."""

    def __init__(self, store: Path | None, most_bytes: int | None = None) -> None:
        self._port = free_port()
        self._stores: list[str] = []
        if store is not None and most_bytes is None:
            self._stores = ["-js", "-sd", str(store)]
        elif store is not None:
            config = store.with_suffix(".conf")
            config.write_text(f"jetstream {{ store_dir: {json.dumps(str(store))}, max_file_store: {most_bytes} }}\n")
            self._stores = ["-c", str(config)]
        self.url = f"nats://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        listen = ["-a", "127.0.0.1", "-p", str(self._port)]
        command = [nats_server_binary(), *listen, *self._stores]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self._port, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


@contextlib.contextmanager
def running(kind: str, store: Path) -> Iterator[Server]:
    """``kind``: nats-server or memory."""
    if kind == "memory":
        server = MemoryServer("memory://nats", random.Random(0), time.time, latency_s=0.0005)
        server.start()
        yield server
        return
    real = RealServer(store)
    try:
        yield real
    finally:
        real.kill()


async def until(holds: Callable[[], bool | Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Raises TimeoutError where it does not come to hold."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)
