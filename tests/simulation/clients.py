"""The clients of the campaign with real processes, over the simulated network and at a pace of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from shared.bus import Bus
from tests.checker.history import History
from tests.faults.load import batches, files, keys, streams
from tests.faults.load.client import STREAM_S, TIMEOUT, Clients
from tests.faults.load.questions import Questions
from tests.simulation.http import Network
from tests.simulation.setup import CLIENTS_KEY, Pace
from tests.simulation.traffic import QUIET_TIMES, Traffic
from tests.simulation.transport import VirtualTransport


class VirtualClients(Clients):
    """One of them, with randomness of its own: what it does next depends on no other client. ``slowness``: its pauses
    against those of the campaign with real processes; where ``traffic`` is quiet they are longer yet."""

    def __init__(
        self,
        network: Network,
        servers: Iterable[str],
        history: History,
        now: Callable[[], float],
        seed: str,
        slowness: float = 1.0,
        traffic: Traffic | None = None,
        stream_s: float = STREAM_S,
    ) -> None:
        urls = {name: f"http://{name}" for name in servers}
        super().__init__(urls, CLIENTS_KEY, history, now, random.Random(seed), stream_s)
        self._network = network
        self._slowness = slowness
        self._traffic = traffic or Traffic()

    @asynccontextmanager
    async def http(self, server: str, limits: httpx.Timeout = TIMEOUT) -> AsyncIterator[httpx.AsyncClient]:
        transport = VirtualTransport(self._network, server)
        async with httpx.AsyncClient(
            base_url=self.urls[server],
            headers=self._headers,
            timeout=limits,
            trust_env=False,
            transport=transport,
            event_hooks=self.hooks(server),
        ) as client:
            yield client

    async def rest(self, at_most_s: float) -> None:
        pause_s = self.rng.uniform(0.0, at_most_s * self._slowness)
        if quiet_s := self._traffic.quiet_s(self.now()):
            pause_s = min(pause_s * QUIET_TIMES, quiet_s + pause_s)
        await self.pause(pause_s)


class Load:
    """All clients of a run. ``contents``: of the files that are to stay, by their ids; ``keys``: by their names."""

    def __init__(self, make: Callable[[str, float], VirtualClients], questions: Questions, pace: Pace) -> None:
        self.contents: dict[str, bytes] = {}
        self.keys: dict[str, str] = {}
        self._make = make
        self._questions = questions
        self._pace = pace
        self._clients: list[VirtualClients] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, connect: keys.Connect) -> None:
        pace, questions = self._pace, self._questions
        for n in range(pace.num_streams):
            clients = self._client(f"stream-{n}", pace.stream_slowness)
            self._do(streams.be_client(clients, questions))
        for n in range(pace.num_batches):
            clients = self._client(f"batch-{n}", pace.batch_slowness)
            self._do(batches.be_client(clients, questions, f"batch-{n}"))
        for n in range(pace.num_files):
            clients = self._client(f"file-{n}", pace.file_slowness)
            self._do(files.be_client(clients, f"file-{n}", self.contents))
        for n in range(pace.num_keys):
            clients = self._client(f"key-{n}", pace.key_slowness)
            self._do(keys.be_client(clients, connect, f"key-{n}", self.keys))

    async def end(self, timeout_s: float) -> int:
        """Nothing new is begun, what was is waited for; how many clients have not come to their end. Raises what a
        client raised."""
        for clients in self._clients:
            clients.is_over.set()
        _, hanging = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        return len(hanging)

    def _client(self, name: str, slowness: float) -> VirtualClients:
        clients = self._make(name, slowness)
        self._clients.append(clients)
        return clients

    def _do(self, being: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(being))


def connecting(url: str, name: str) -> keys.Connect:
    """A connection of its own each time, as the command line has it."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Bus]:
        bus = await Bus.connect(url, name)
        try:
            yield bus
        finally:
            await bus.close()

    return connect
