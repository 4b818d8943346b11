"""Offline work: flex requests, batches from their upload to the end of their files, and uploads alone."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.reliability.kinds.online import Requests, Tell
from benchmarks.reliability.kinds.patterns import at_random, side_by_side
from benchmarks.reliability.kinds.tally import Tally
from loadgen.client.abilities import COMPLETIONS, streamed
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from loadgen.errors import ServerError
from loadgen.offline.batch import ENDED

POLL_S = 1.0


@dataclass(slots=True)
class Flex:
    """``rate`` streams of the service tier flex a second."""

    client: OpenAIClient
    requests: Requests
    rate: float
    seed: int = 0
    tell: Tell = lambda _: None
    tally: Tally = field(default_factory=lambda: Tally("flex"))

    async def run(self) -> None:
        await at_random(self.rate, self.seed, lambda _: self._send())

    async def _send(self) -> None:
        record = RequestRecord(time.perf_counter())
        await self.client.stream(streamed(COMPLETIONS, self.requests.body() | {"service_tier": "flex"}), record)
        self.tally.note(record)
        self.tell(record)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """``num_lines`` requests in a file in ``folder``, which is written here and now: it is its sending that counts."""

    requests: Requests
    num_lines: int
    folder: Path

    def __post_init__(self) -> None:
        with self.path.open("wb") as file:
            for number in range(self.num_lines):
                body = self.requests.body()
                line = {"custom_id": f"line-{number}", "method": "POST", "url": COMPLETIONS, "body": body}
                file.write(msgspec.json.encode(line) + b"\n")

    @property
    def path(self) -> Path:
        return self.folder / f"{self.requests.salt}-{self.num_lines}.jsonl"

    async def upload(self, client: OpenAIClient) -> str:
        """As a new file; its id. Raises ServerError."""
        return await client.upload(self.path)


@dataclass(slots=True)
class Batches:
    """``num_clients``, each with a batch of ``file`` after the other, ``period_s`` between them. Every
    ``cancel_every``-th is cancelled, the others are followed to their end; output and input are deleted."""

    client: OpenAIClient
    file: BatchFile
    num_clients: int = 1
    period_s: float = 1.0
    cancel_every: int = 3
    tally: Tally = field(default_factory=lambda: Tally("batches"))
    num_lines_done: int = 0
    _num_created: int = 0

    async def run(self) -> None:
        await side_by_side(self.num_clients, self._one_client)

    async def _one_client(self) -> None:
        while True:
            batch = await self.tally.take(self._create())
            if batch is not None:
                await self._follow(batch)
            await asyncio.sleep(self.period_s)

    async def _create(self) -> dict[str, Any]:
        file_id = await self.file.upload(self.client)
        wanted = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
        try:
            batch: dict[str, Any] = await self.client.post_json("/v1/batches", wanted)
        except ServerError:
            await self._delete(file_id)
            raise
        self._num_created += 1
        if self._num_created % self.cancel_every == 0:
            await asyncio.sleep(POLL_S)
            with contextlib.suppress(ServerError):  # it may have ended
                await self.client.post_json(f"/v1/batches/{batch['id']}/cancel")
        return batch

    async def _follow(self, batch: dict[str, Any]) -> None:
        while batch["status"] not in ENDED:
            await asyncio.sleep(POLL_S)
            with contextlib.suppress(ServerError):
                batch = await self.client.get_json(f"/v1/batches/{batch['id']}")
        self.num_lines_done += batch["request_counts"]["completed"]
        if batch["status"] not in ("completed", "cancelled"):
            self.tally.fail(f"a batch is {batch['status']}: {batch.get('errors')}", was_served=True)
        for name in ("output_file_id", "error_file_id", "input_file_id"):
            if batch.get(name):
                with contextlib.suppress(ServerError):
                    await self.client.get_bytes(f"/v1/files/{batch[name]}/content")
                await self._delete(batch[name])

    async def _delete(self, file_id: str) -> None:
        with contextlib.suppress(ServerError):
            await self.client.delete(f"/v1/files/{file_id}")


@dataclass(slots=True)
class Uploads:
    """``num_clients``, each with an upload of ``file`` after the other, deleted again."""

    client: OpenAIClient
    file: BatchFile
    num_clients: int = 1
    period_s: float = 0.1
    tally: Tally = field(default_factory=lambda: Tally("uploads"))

    async def run(self) -> None:
        await side_by_side(self.num_clients, self._one_client)

    async def _one_client(self) -> None:
        while True:
            file_id = await self.tally.take(self.file.upload(self.client))
            if file_id is not None:
                with contextlib.suppress(ServerError):
                    await self.client.delete(f"/v1/files/{file_id}")
            await asyncio.sleep(self.period_s)
