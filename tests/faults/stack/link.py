"""A TCP link between one process and nats-server, which can be cut, slow, lossy, or go one way only."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

CHUNK = 65536
RETRANSMIT_S = (0.2, 1.0)  # what a lost packet costs TCP
MAX_IN_FLIGHT = 1024  # chunks that a slow link holds


@dataclass(frozen=True, slots=True)
class Weather:
    """``up``: from the process to the server; a direction that is not open lets nothing through and loses nothing, as
    a cable that is pulled while TCP sends again. ``delay_s``: each way; ``loss``: of the chunks that are sent."""

    up: bool = True
    down: bool = True
    delay_s: float = 0.0
    loss: float = 0.0


CALM = Weather()


class Link:
    """Listens at ``port`` from ``open`` to ``close``."""

    def __init__(self, server_port: int, rng: random.Random, address: str = "127.0.0.1") -> None:
        """``address``: where it listens; the server is at this machine's loopback."""
        self.port = 0
        self._address = address
        self._server_port = server_port
        self._rng = rng
        self._weather = CALM
        self._changed = asyncio.Condition()
        self._open: dict[asyncio.Task[None], None] = {}

    @property
    def url(self) -> str:
        return f"nats://{self._address}:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, self._address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        connections = [*self._open]
        self.reset()
        await asyncio.gather(*connections, return_exceptions=True)

    async def set(self, weather: Weather) -> None:
        async with self._changed:
            self._weather = weather
            self._changed.notify_all()

    def reset(self) -> None:
        """Every connection breaks; new ones can be made."""
        for connection in [*self._open]:
            connection.cancel()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        try:
            await self._may_pass("up")
            others = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, others[1], "up"))
                    pumps.create_task(self._pump(others[0], writer, "down"))
            finally:
                others[1].transport.abort()
        except* (OSError, RuntimeError, _EndedError, asyncio.CancelledError):
            pass  # either side is gone: uvloop says so with a RuntimeError
        finally:
            writer.transport.abort()
            del self._open[task]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        """In order; a delay holds back what comes after, not how much may come."""
        loop = asyncio.get_running_loop()
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_IN_FLIGHT)

        async def read() -> None:
            while chunk := await reader.read(CHUNK):
                await on_its_way.put((loop.time() + self._takes_s(), chunk))
            await on_its_way.put((loop.time(), b""))

        async with asyncio.TaskGroup() as halves:
            halves.create_task(read())
            while True:
                arrives_s, chunk = await on_its_way.get()
                if (left_s := arrives_s - loop.time()) > 0:
                    await asyncio.sleep(left_s)
                await self._may_pass(way)
                if not chunk:
                    raise _EndedError
                writer.write(chunk)
                await writer.drain()

    def _takes_s(self) -> float:
        weather = self._weather
        is_lost = weather.loss > 0 and self._rng.random() < weather.loss
        return weather.delay_s + (self._rng.uniform(*RETRANSMIT_S) if is_lost else 0.0)

    async def _may_pass(self, way: str) -> None:
        if not getattr(self._weather, way):
            async with self._changed:
                await self._changed.wait_for(lambda: getattr(self._weather, way))


class _EndedError(Exception):
    """One side has closed the connection."""
