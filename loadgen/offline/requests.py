"""An offline backlog as plain streamed requests, a bounded number of them at a time, for servers without batches."""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence

from loadgen.client.abilities import streamed
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.openloop import sleep_until
from loadgen.client.patience import Patience, stream_until_taken
from loadgen.client.records import RequestRecord
from loadgen.offline.bodies import OfflineMaker, Tell, per_output
from loadgen.report.report import OfflineReport
from loadgen.workload.backlog import OfflinePrompt


class OfflineRequests:
    """``concurrency`` workers over one backlog. Tokens count when they arrive, so that the window's edges are sharp;
    prompt tokens count in proportion to them, as those of a batch whose tokens are counted as they come.

    A request that the server does not take goes again after a pause, so that one that is away for a moment has not
    turned the whole backlog away when it is back; when the patience with it has ended, the request has failed."""

    def __init__(
        self, client: OpenAIClient, maker: OfflineMaker, prompts: Sequence[OfflinePrompt], tell: Tell, concurrency: int
    ) -> None:
        self.records: list[RequestRecord] = []
        self.num_again = 0
        self._client = client
        self._bodies: Iterator[StreamRequest] = (streamed(path, body) for path, body in maker.bodies(prompts))
        self._prompts = prompts
        self._backlog = len(prompts)
        self._inputs_per_output = maker.inputs_per_output(prompts)
        self._concurrency = min(concurrency, len(prompts))
        self._tell = tell
        self._patience = Patience()
        self._making = asyncio.Lock()
        self._num_finished = 0
        self._is_exhausted = False
        self._workers: asyncio.Task[None] | None = None
        self._start_s = self._end_s = time.perf_counter()

    async def start(self) -> None:
        """Nothing waits on the server before the run."""

    async def run(self, start_s: float, end_s: float) -> None:
        """Keep the workers busy from now until ``end_s`` or until the backlog is done; where it is done by ``start_s``,
        it counts from now."""
        begun_s = time.perf_counter()
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
            self._is_exhausted = True
        if self._end_s < start_s:
            self._start_s = begun_s
            await sleep_until(start_s)

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
        between them; prompts are in proportion to them, as in all of the backlog, or in what has ended of it."""
        start_s, end_s = self._start_s, min(self._end_s, time.perf_counter())
        ended = [r for r in self.records if _finish_s(r) < end_s]
        done = [r for r in ended if r.ok]
        output_tokens = sum(_tokens_within(r, start_s, end_s) for r in self.records if r.ok or _finish_s(r) >= end_s)
        inputs = None if self._is_exhausted or self._has_short_answers() else self._inputs_per_output
        if inputs is None and all(r.prompt_tokens is not None for r in done):
            inputs = per_output(sum(r.prompt_tokens or 0 for r in done), sum(r.num_output_tokens for r in done))
        return OfflineReport.counted(
            mode="requests",
            backlog=self._backlog,
            completed=sum(_finish_s(r) >= start_s for r in done),
            errors=sum(_finish_s(r) >= start_s for r in ended if r.failed),
            input_tokens=None if inputs is None else round(output_tokens * inputs),
            output_tokens=output_tokens,
            elapsed_s=max(0.0, end_s - start_s),
            exhausted=self._is_exhausted,
        )

    def _has_short_answers(self) -> bool:
        """An answer has fewer tokens than were asked for, by the server's count: lengths are not as the backlog's."""
        pairs = zip(self.records, self._prompts, strict=False)
        return any(record.is_shorter_than(prompt.max_tokens) for record, prompt in pairs)

    async def _work_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._concurrency):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while (request := await self._next()) is not None:
            await self._send(request)
            self._num_finished += 1
            self._tell(self._num_finished, self._backlog)

    async def _send(self, request: StreamRequest) -> None:
        position = len(self.records)

        def begun(record: RequestRecord) -> None:
            if position == len(self.records):
                self.records.append(record)
            else:
                self.records[position] = record
                self.num_again += 1

        await stream_until_taken(self._client, request, self._patience, begun)

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
