"""A desk to hand batches in: the real manager on a real bus, and a pool that does what an executor does in the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.offline_queue.batches.manager import BatchManager
from shared.bus import Bucket, Bus, Objects
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.openai.completions.requests import CHAT
from shared.openai.served_model import ServedModel
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchKey, BatchRecord, FileObject
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None))
MODEL = ServedModel(DEFAULT_MODEL, max_model_len=256)
WORK = subjects.of_model(MODEL.name)
TIMEOUT_S = 60.0
FINAL = ("completed", "failed", "expired", "cancelled")
ENDLESS = 1_000_000


@dataclass
class ManualClock:
    """Time stands still until it is set; ``set_s``: how far the clock of the day was put forward."""

    now_s: float = 1_000_000.0
    set_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + self.set_s


class StoringPool:
    """Answers requests one after the other, ``permits`` of them, by what alone counts: a result in the stream."""

    def __init__(self, bus: Bus, permits: int) -> None:
        self.permits = asyncio.Semaphore(permits)
        self.waiting: dict[str, OfflineRequest] = {}
        self.added: list[str] = []
        self.most_waiting = 0
        self.discarded: list[str] = []
        self.learnt: dict[str, int] = {}
        self.retried: list[tuple[str, int]] = []
        self.changed = asyncio.Event()
        self._bus = bus

    def add(self, requests: list[OfflineRequest]) -> None:
        for request in requests:
            self.added.append(request.request.request_id)
            self.waiting.setdefault(request.request.request_id, request)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        self.changed.set()

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        self.learnt[request_id] = num_output_tokens

    def retry(self, request_id: str, num_failures: int) -> None:
        self.retried.append((request_id, num_failures))
        self.changed.set()

    def discard(self, request_ids: list[str]) -> None:
        self.discarded += request_ids
        for request_id in request_ids:
            self.waiting.pop(request_id, None)
        self.changed.set()

    async def run(self) -> None:
        while True:
            check_cancelled()
            await self.permits.acquire()
            while not self.waiting:
                check_cancelled()
                self.changed.clear()
                await self.changed.wait()
            request_id = next(iter(self.waiting))
            await self._bus.store(WORK.result(request_id), answer(self.waiting.pop(request_id)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def answer_text(custom_id: str) -> str:
    return f"The answer to {custom_id}."


def answer(request: OfflineRequest) -> OfflineResult:
    """A custom_id that begins with "crash" is one that the executor cannot serve, one that begins with "odd-token" one
    whose answer has a token that no tokenizer has."""
    request_id = request.request.request_id
    if request.custom_id.startswith("crash"):
        return OfflineResult(request_id, [], FinishReason.ERROR, error="the engine failed")
    odd = [1 << 40] if request.custom_id.startswith("odd-token") else []
    return OfflineResult(request_id, TOKENIZER.encode(answer_text(request.custom_id)) + odd, FinishReason.STOP, 3)


def chat_line(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL.name, "messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": 8}
    body |= changes.pop("body", {})
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def as_jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass
class Desk:
    """The client's side, and the start and the kill of the manager."""

    url: str
    bus: Bus
    batches: Bucket[BatchRecord]
    batch_keys: Bucket[BatchKey]
    files: Bucket[FileObject]
    objects: Objects
    clock: Clock
    number: int = 0

    @classmethod
    async def open(cls, url: str, bus: Bus, clock: Clock | None = None) -> Desk:
        return cls(
            url,
            bus,
            await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord),
            await bus.bucket(subjects.BATCH_KEYS_BUCKET, BatchKey),
            await bus.bucket(subjects.FILES_BUCKET, FileObject),
            await bus.objects(),
            clock or ManualClock(),
        )

    @contextlib.asynccontextmanager
    async def running(
        self, permits: int = ENDLESS, pool_bytes: int = 256 * 1024**2, model_name: str = MODEL.name
    ) -> AsyncIterator[tuple[BatchManager, StoringPool]]:
        """A manager and a pool of their own, with nothing that an earlier one knew. Leaving is a kill: both are
        cancelled wherever they are."""
        bus = await Bus.connect(self.url, "offline-queue")
        pool = StoringPool(bus, permits)
        manager = BatchManager(bus, model_name, TOKENIZER, MODEL, pool, self.clock, pool_bytes)
        await manager.start()
        tasks = [asyncio.create_task(manager.run()), asyncio.create_task(pool.run())]
        try:
            yield manager, pool
        finally:
            for task in tasks:
                task.cancel()
            async with asyncio.timeout(TIMEOUT_S):
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            await bus._client.close()  # a killed process does not drain
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def submit(
        self,
        content: bytes | list[dict[str, Any]],
        window_s: int = 86_400,
        endpoint: str = CHAT,
        client_id: str = "",
        owner: str = "",
    ) -> str:
        """As the gateway does; the batch's id."""
        self.number += 1
        batch_id, file_id = f"batch_{self.number}", f"file-{self.number}"
        data = content if isinstance(content, bytes) else as_jsonl(content)
        now_s = int(self.clock.unix_s())
        await self.objects.put(file_id, data)
        await self.files.create(file_id, FileObject(file_id, len(data), now_s, "input.jsonl", "batch"))
        ends_s = now_s + window_s
        whose = {"client_id": client_id, "owner": owner, "model_name": MODEL.name}
        record = BatchRecord(batch_id, endpoint, file_id, "24h", now_s, ends_s, "validating", **whose)
        await self.batches.create(batch_id, record)
        return batch_id

    async def cancel(self, batch_id: str) -> None:
        """As the gateway does."""

        def change(record: BatchRecord) -> BatchRecord:
            return replace(record, status="cancelling", cancelling_at=int(self.clock.unix_s()))

        await self.batches.edit(batch_id, change)

    async def until(self, batch_id: str, condition: Callable[[BatchRecord], bool]) -> BatchRecord:
        async with asyncio.timeout(TIMEOUT_S):
            async for entry in self.batches.watch():
                if entry is not None and entry.key == batch_id and entry.value and condition(entry.value):
                    return entry.value
        raise AssertionError("a watch does not end")

    async def until_status(self, batch_id: str, *statuses: str) -> BatchRecord:
        return await self.until(batch_id, lambda record: record.status in statuses)

    async def until_cleared(self, batch_id: str) -> BatchRecord:
        return await self.until(batch_id, lambda record: record.cleared)

    async def read_file(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        data = b"".join([chunk async for chunk in self.objects.chunks(file_id)])
        entry = await self.files.get(file_id)
        assert entry.value is not None
        assert (entry.value.bytes, entry.value.purpose) == (len(data), "batch_output")
        return [json.loads(line) for line in data.splitlines()]

    async def results(self, record: BatchRecord) -> dict[str, dict[str, Any]]:
        """Every line of both files by custom_id; none may be there twice."""
        lines = await self.read_file(record.output_file_id) + await self.read_file(record.error_file_id)
        by_id = {line["custom_id"]: line for line in lines}
        assert len(by_id) == len(lines)
        return by_id

    async def stored_requests(self, batch_id: str) -> list[str]:
        subject = WORK.batch_requests(batch_id)
        read = self.bus.read(subjects.REQUESTS_STREAM, subject, OfflineRequest)
        return [stored.message.request.request_id async for stored in read]

    async def stored_results(self, batch_id: str) -> list[str]:
        subject = WORK.batch_results(batch_id)
        read = self.bus.read(subjects.RESULTS_STREAM, subject, OfflineResult)
        return [stored.message.request_id async for stored in read]
