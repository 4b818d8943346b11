"""Sends a trace's requests at their own times, whatever the server does.

Each request has a due time fixed before the run. It is sent then, by a task of its own, even while every earlier one
still waits; and its latency counts from the due time, not from when it was sent. So neither a stalled server nor a
late load generator can hide a wait (no coordinated omission); how late the sends were is recorded too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.client.abilities import RequestMaker
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.records import RequestRecord
from loadgen.workload.traces import TraceRequest

NUM_PREPARED = 256  # bodies made ahead of their send time, so that a burst does not wait for their making

Prepared = tuple[TraceRequest, StreamRequest]


@dataclass(slots=True)
class OpenLoop:
    """One pass over the requests. ``records`` are in order of sending and fill up while it runs."""

    client: OpenAIClient
    maker: RequestMaker
    requests: Sequence[TraceRequest]
    on_change: Callable[[OpenLoop], None] = lambda _: None
    records: list[RequestRecord] = field(default_factory=list)
    num_finished: int = 0
    num_failed: int = 0
    _prepared: asyncio.Queue[Prepared] = field(default_factory=lambda: asyncio.Queue(NUM_PREPARED))

    async def prepare(self) -> None:
        """Make the first bodies, before the time runs."""
        await self._prepare(range(min(NUM_PREPARED, len(self.requests))))

    async def run(self, start_s: float) -> None:
        """Send each request at ``start_s`` (``time.perf_counter``) plus its arrival, and wait for all answers. On
        cancellation the connections close, and the records stay as they are."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._prepare(range(self._prepared.qsize(), len(self.requests))))
            for _ in self.requests:
                request, body = await self._prepared.get()
                due_s = start_s + request.arrival_s
                await sleep_until(due_s)
                record = RequestRecord(due_s)
                self.records.append(record)
                tasks.create_task(self._send(body, record))

    @property
    def num_short(self) -> int:
        """Answers with fewer tokens than the trace's, by the server's count."""
        pairs = zip(self.records, self.requests, strict=False)
        return sum(record.is_shorter_than(request.num_output_tokens) for record, request in pairs)

    async def _prepare(self, indices: range) -> None:
        for index in indices:
            request = self.requests[index]
            body = await asyncio.to_thread(self.maker.online, request, index)
            await self._prepared.put((request, body))

    async def _send(self, body: StreamRequest, record: RequestRecord) -> None:
        self.on_change(self)
        await self.client.stream(body, record)
        self.num_finished += 1
        self.num_failed += record.failed
        self.on_change(self)


async def sleep_until(time_s: float) -> None:
    """Returns at ``time_s`` on ``time.perf_counter``, never before: timers may fire up to a millisecond early."""
    wait_s = time_s - time.perf_counter()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
        await sleep_until(time_s)
