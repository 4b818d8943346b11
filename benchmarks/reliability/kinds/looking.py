"""Who only looks: lists, and dashboards."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.reliability.kinds.patterns import at_random, side_by_side
from benchmarks.reliability.kinds.tally import Tally
from loadgen.client.openai_client import OpenAIClient

PATHS = ("/v1/files", "/v1/batches", "/v1/models", "/status", "/metrics", "/health", "/ready")


@dataclass(slots=True)
class Lists:
    """``rate`` requests a second, each for another of ``paths``."""

    client: OpenAIClient
    rate: float
    paths: tuple[str, ...] = PATHS
    seed: int = 0
    tally: Tally = field(default_factory=lambda: Tally("lists"))

    async def run(self) -> None:
        await at_random(self.rate, self.seed, lambda rng: self._ask(rng.choice(self.paths)))

    async def _ask(self, path: str) -> None:
        await self.tally.take(self.client.get_bytes(path))


@dataclass(slots=True)
class Viewers:
    """So many dashboards, each watched for up to ``stay_s`` and opened again."""

    url: str
    num_viewers: int
    stay_s: float = 60.0
    seed: int = 0
    tally: Tally = field(default_factory=lambda: Tally("viewers"))

    async def run(self) -> None:
        rng = random.Random(self.seed)
        await side_by_side(self.num_viewers, lambda: self._one_viewer(rng))

    async def _one_viewer(self, rng: random.Random) -> None:
        while True:
            self.tally.num_sent += 1
            try:
                num_bytes = await self._watch(rng.uniform(0, self.stay_s))
                self.tally.num_served += num_bytes > 0
            except OSError as error:
                self.tally.failed[type(error).__name__] += 1
                await asyncio.sleep(1.0)

    async def _watch(self, stay_s: float) -> int:
        """The bytes that came."""
        target, num_bytes = urlsplit(self.url), 0
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        try:
            writer.write(f"GET /dashboard/events HTTP/1.1\r\nHost: {target.netloc}\r\n\r\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    while data := await reader.read(2**16):
                        num_bytes += len(data)
        finally:
            writer.close()
        return num_bytes
