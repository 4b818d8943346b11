"""An offline backlog as plain streamed requests, a bounded number of them at a time, for servers without batches."""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence

from loadgen.client.abilities import streamed
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.openloop import sleep_until
from loadgen.client.records import RequestRecord
from loadgen.offline.bodies import OfflineMaker, Tell
from loadgen.report.report import OfflineReport
from loadgen.workload.backlog import OfflinePrompt


class OfflineRequests:
    """``concurrency`` workers over one backlog. Tokens count when they arrive, so that the window's edges are sharp."""

    def __init__(
        self, client: OpenAIClient, maker: OfflineMaker, prompts: Sequence[OfflinePrompt], tell: Tell, concurrency: int
    ) -> None:
        self.records: list[RequestRecord] = []
        self._client = client
        self._bodies: Iterator[StreamRequest] = (streamed(path, body) for path, body in maker.bodies(prompts))
        self._backlog = len(prompts)
        self._concurrency = min(concurrency, len(prompts))
        self._tell = tell
        self._making = asyncio.Lock()
        self._num_finished = 0
        self._workers: asyncio.Task[None] | None = None
        self._start_s = self._end_s = time.perf_counter()

    async def start(self) -> None:
        """Nothing waits on the server before the run."""

    async def run(self, start_s: float, end_s: float) -> None:
        """Keep the workers busy from now until ``end_s`` or until the backlog is done."""
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

    def report(self) -> OfflineReport:
        """Counts between the run's start and its end. A request that is under way at either counts the tokens that came
        between them, and its prompt where its first token did."""
        start_s, end_s = self._start_s, min(self._end_s, time.perf_counter())
        answered = [r for r in self.records if r.finished_s is not None and r.finished_s < end_s]
        completed = [r for r in answered if r.ok and _finish_s(r) >= start_s]
        failed = [r for r in answered if r.failed]
        counted = [r for r in self.records if not r.failed or _finish_s(r) >= end_s]
        begun = sum(1 for r in counted if r.token_times_s and start_s <= r.token_times_s[0] < end_s)
        prompts = [r.prompt_tokens for r in completed if r.prompt_tokens is not None]
        known = bool(prompts) and len(prompts) == len(completed)
        return OfflineReport.counted(
            mode="requests",
            backlog=self._backlog,
            completed=len(completed),
            errors=sum(_finish_s(r) >= start_s for r in failed),
            input_tokens=round(sum(prompts) / len(prompts) * begun) if known else None,
            output_tokens=sum(_tokens_within(r, start_s, end_s) for r in counted),
            elapsed_s=max(0.0, end_s - start_s),
            exhausted=len(answered) == self._backlog,
        )

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
            self._tell(self._num_finished, self._backlog)

    async def _next(self) -> StreamRequest | None:
        """The next request, made in a thread so that the making delays no online send."""
        async with self._making:
            return await asyncio.to_thread(next, self._bodies, None)


def _finish_s(record: RequestRecord) -> float:
    return math.inf if record.finished_s is None else record.finished_s


def _tokens_within(record: RequestRecord, start_s: float, end_s: float) -> int:
    """By the server's count where the whole answer came within, else by events."""
    events = sum(start_s <= time_s < end_s for time_s in record.token_times_s)
    is_whole = record.finished_s is not None and record.finished_s < end_s and events == len(record.token_times_s)
    return record.num_output_tokens if is_whole else events
