"""An offline backlog as plain streamed requests, a bounded number of them at a time, for servers without batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from loadgen.abilities import streamed
from loadgen.backlog import OfflinePrompt
from loadgen.client import OpenAIClient, StreamRequest
from loadgen.offline import OfflineMaker, OfflineTotals
from loadgen.openloop import sleep_until
from loadgen.records import RequestRecord


class OfflineRequests:
    """``concurrency`` workers over one backlog. Tokens count when they arrive, so that the window's edges are sharp."""

    def __init__(
        self,
        client: OpenAIClient,
        maker: OfflineMaker,
        prompts: Sequence[OfflinePrompt],
        concurrency: int,
        on_change: Callable[[int, int], None] | None = None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self._client = client
        self._bodies: Iterator[StreamRequest] = (streamed(path, body) for path, body in maker.bodies(prompts))
        self._backlog = len(prompts)
        self._concurrency = min(concurrency, len(prompts))
        self._on_change = on_change
        self._making = asyncio.Lock()
        self._num_finished = 0
        self._workers: asyncio.Task[None] | None = None
        self._start_s = self._end_s = time.perf_counter()

    async def start(self) -> None:
        """Nothing waits on the server before the run."""

    async def run(self, start_s: float, end_s: float) -> None:
        """Keep the workers busy until ``end_s`` or until the backlog is done."""
        self._start_s, self._end_s = start_s, end_s
        self._workers = asyncio.create_task(self._work_all())
        window = asyncio.create_task(sleep_until(end_s))
        try:
            await asyncio.wait((self._workers, window), return_when=asyncio.FIRST_COMPLETED)
        finally:
            window.cancel()
        self._end_s = min(end_s, time.perf_counter())
        if self._workers.done():
            await self._workers

    async def stop(self, drain: bool) -> None:
        """Close the connections of what is under way; a server stops work whose client is gone."""
        if self._workers is None:
            return
        if not drain:
            self._workers.cancel()
        await asyncio.wait((self._workers,))
        if not self._workers.cancelled():
            self._workers.result()

    def totals(self) -> OfflineTotals:
        """Counts at the run's end. A request under way counts its prompt once it has a token, and its tokens so far."""
        end_s = min(self._end_s, time.perf_counter())
        completed, running, errors = self._sorted_at(end_s)
        output = sum(r.num_output_tokens for r in completed) + sum(r.events_before(end_s) for r in running)
        prompts = [r.prompt_tokens for r in completed if r.prompt_tokens is not None]
        known = bool(prompts) and len(prompts) == len(completed)
        started = len(completed) + len(running)
        return OfflineTotals(
            mode="requests",
            backlog=self._backlog,
            completed=len(completed),
            errors=errors,
            input_tokens=round(sum(prompts) / len(prompts) * started) if known else None,
            output_tokens=output,
            elapsed_s=max(0.0, end_s - self._start_s),
            exhausted=len(completed) + errors == self._backlog,
        )

    def _sorted_at(self, end_s: float) -> tuple[list[RequestRecord], list[RequestRecord], int]:
        """Completed before ``end_s``, under way then with a token at least, and the number of failures before it."""
        completed, running, errors = [], [], 0
        for record in self.records:
            if record.finished_s is None or record.finished_s >= end_s:
                if record.events_before(end_s):
                    running.append(record)
            elif record.ok:
                completed.append(record)
            else:
                errors += 1
        return completed, running, errors

    async def _work_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while (request := await self._next()) is not None:
            record = RequestRecord(time.perf_counter())
            self.records.append(record)
            await self._client.stream(request, record)
            self._num_finished += 1
            if self._on_change is not None:
                self._on_change(self._num_finished, self._backlog)

    async def _next(self) -> StreamRequest | None:
        """The next request, made in a thread so that the making delays no online send."""
        async with self._making:
            return await asyncio.to_thread(next, self._bodies, None)
