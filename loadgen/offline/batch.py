"""An offline backlog as real OpenAI batches: upload, create, watch, cancel, delete the files."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from loadgen.client.counters import GENERATED_METRIC, Reading, gained, read_counter
from loadgen.client.openai_client import OpenAIClient, as_type
from loadgen.client.openloop import sleep_until
from loadgen.client.patience import PATIENCE_S
from loadgen.client.sse import Usage
from loadgen.errors import ServerError, WorkloadError
from loadgen.offline.bodies import (
    OfflineMaker,
    Tell,
    batch_lines,
    output_failures,
    output_usages,
    per_output,
    write_files,
)
from loadgen.report.report import OfflineReport
from loadgen.workload.backlog import OfflinePrompt
from shared.protocol.offline.batches import RequestCounts

logger = logging.getLogger(__name__)

POLL_S = 1.0
CANCEL_TIMEOUT_S = 60.0
SILENT_S = 10.0  # after which a server that nobody can reach is not asked to cancel any more
NOT_FOUND = 404
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class _BatchUsage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0


class Batch(msgspec.Struct, frozen=True):
    """What we read of OpenAI's batch object."""

    id: str
    status: str
    request_counts: RequestCounts | None = None
    usage: _BatchUsage | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Any = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class _Progress:
    """All batches together at one time."""

    time_s: float
    completed: int = 0
    failed: int = 0
    is_over: bool = False  # no batch goes on
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    generated: Reading | None = None

    @property
    def ended(self) -> int:
        return self.completed + self.failed


class OfflineBatch:
    """The backlog as one batch, or as several where OpenAI's limits for a file ask for it.

    Tokens are counted from the batches' live usage at the window's two ends; a server that has none until a batch
    ends gives request counts only, and its tokens come from the output files where the backlog ran out or is drained.
    """

    def __init__(
        self, client: OpenAIClient, maker: OfflineMaker, prompts: Sequence[OfflinePrompt], tell: Tell, by_counter: bool
    ) -> None:
        """``by_counter``: output tokens as they come, by the server's counter of all offline work, and prompt tokens
        in the backlog's proportion, or that of the requests that ended; where it has none, as requests end."""
        self.batches: list[Batch] = []
        self.failures: list[str] = []  # what failed lines say, once it has stopped
        self.notes: list[str] = []  # what to know of the window
        self._input_ids: list[str] = []
        self._client = client
        self._lines = batch_lines(maker, prompts)
        self._endpoint = maker.endpoint(prompts[0])
        self._backlog = len(prompts)
        self._inputs_per_output = maker.inputs_per_output(prompts)
        self._tell = tell
        self._by_counter = by_counter
        self._is_away = self._is_silent = False  # no poll is answered; not even with an error
        self._created = self._first = self._last = _Progress(time.perf_counter())

    async def start(self) -> None:
        """Upload and create; returns once no batch is in validation. Raises ServerError when one is refused, and
        WorkloadError when its input cannot be written."""
        self._created = self._first = self._last = _Progress(time.perf_counter())
        try:
            with tempfile.TemporaryDirectory(prefix="replay-") as folder:
                for path in await asyncio.to_thread(write_files, self._lines, Path(folder)):
                    await _to_its_end(self._create(path))
        except OSError as error:
            raise WorkloadError(f"cannot write the backlog's batches where TMPDIR is: {error.strerror}") from error
        await self._poll_until(lambda: all(batch.status != "validating" for batch in self.batches), POLL_S / 4)
        for batch in self.batches:
            if batch.status == "failed":
                raise ServerError(f"batch {batch.id} was refused: {msgspec.json.encode(batch.errors).decode()[:300]}")

    async def _create(self, path: Path) -> None:
        file_id = await self._client.upload(path)
        self._input_ids.append(file_id)
        wanted = {"input_file_id": file_id, "endpoint": self._endpoint, "completion_window": "24h"}
        self.batches.append(as_type(await self._client.post_json("/v1/batches", wanted), Batch))

    async def run(self, start_s: float, end_s: float) -> None:
        """Watch until ``end_s`` or until no batch goes on; where that is so by ``start_s``, it counts from creation."""
        await sleep_until(start_s)
        self._last = await self._try_poll() or self._created
        if not self._is_exhausted:
            self._first = self._last
        next_s = time.perf_counter()
        while time.perf_counter() < end_s and not self._is_exhausted:
            next_s = min(end_s, next_s + POLL_S)
            await sleep_until(next_s)
            self._last = await self._try_poll() or self._last
        ended = [batch for batch in self.batches if batch.ended and batch.status != "completed"]
        self.notes += [f"batch {batch.id} ended before all of it was done: {batch.status}" for batch in ended]
        if self._is_away:
            rated_s = self._last.time_s - self._first.time_s
            self.notes.append(
                f"the server did not tell how its batches were at the end: rates are over {rated_s:.1f} s"
            )

    async def stop(self, drain: bool) -> None:
        """Cancel what has not ended and wait until the server has let go of it; or with ``drain``, wait for the end.
        Then delete the files, but for the answers that were waited for. Raises ServerError."""
        if drain or self._is_exhausted:
            await self._poll_until(self._ended, POLL_S)
            try:
                await self._count_outputs()
            finally:
                await self._clear_files(with_answers=not drain)
        else:
            await self._cancel()
            await self._clear_files(with_answers=True)

    def report(self) -> OfflineReport:
        """Differences of the two ends of the run, or from the creation on, where tokens are told at the end alone."""
        last = self._last
        first = self._first if self._first.output_tokens is not None or last.output_tokens is None else self._created
        input_tokens = _difference(first.input_tokens, last.input_tokens)
        output_tokens = _difference(first.output_tokens, last.output_tokens)
        generated = gained(first.generated, last.generated)
        if generated is not None and not self._is_exhausted:
            output_tokens = round(sum(generated))
            inputs = self._inputs_per_output or per_output(last.input_tokens, last.output_tokens)
            input_tokens = None if inputs is None else round(output_tokens * inputs)
        return OfflineReport.counted(
            mode="batch",
            backlog=self._backlog,
            completed=last.completed - first.completed,
            errors=last.failed,  # with lines that were refused before the window
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            elapsed_s=last.time_s - first.time_s,
            exhausted=self._is_exhausted,
        )

    @property
    def _is_exhausted(self) -> bool:
        return self._last.is_over or self._last.ended >= self._backlog

    async def _cancel(self) -> None:
        heard_s = time.perf_counter()
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                while not self._ended():
                    await self._ask_to_cancel()
                    await asyncio.sleep(POLL_S / 4)
                    await self._try_poll()
                    if not self._is_silent:
                        heard_s = time.perf_counter()
                    elif time.perf_counter() - heard_s > SILENT_S:
                        raise ServerError(f"{self._client.url} has gone: not cancelled: {self._left()}")
        except TimeoutError as error:
            raise ServerError(f"not cancelled after {CANCEL_TIMEOUT_S:g} s: {self._left()}") from error

    def _left(self) -> str:
        return ", ".join(batch.id for batch in self.batches if not batch.ended)

    async def _ask_to_cancel(self) -> None:
        for batch in self.batches:
            if not batch.ended and batch.status != "cancelling":
                try:
                    await self._client.post_json(f"/v1/batches/{batch.id}/cancel")
                except ServerError as error:  # it may have ended meanwhile; if not, it is asked again
                    logger.info("not cancelled yet", extra={"batch_id": batch.id, "error": str(error)})

    async def _clear_files(self, with_answers: bool) -> None:
        """Delete them, after a look at why lines failed."""
        errors = [batch.error_file_id for batch in self.batches if batch.error_file_id is not None]
        answers = [*errors, *(batch.output_file_id for batch in self.batches if batch.output_file_id is not None)]
        try:
            if self._last.failed and not self.failures:
                contents = [await self._client.get_bytes(f"/v1/files/{file_id}/content") for file_id in errors]
                self.failures = [failure for content in contents for failure in output_failures(content)]
            for file_id in [*self._input_ids, *(answers if with_answers else ())]:
                await self._delete(file_id)
        except ServerError as error:
            raise ServerError(f"files of the backlog are still on the server: {error}") from error

    async def _delete(self, file_id: str) -> None:
        try:
            await self._client.delete(f"/v1/files/{file_id}")
        except ServerError as error:
            if error.status != NOT_FOUND:  # it is gone where this was cut short before
                raise

    def _ended(self) -> bool:
        return all(batch.ended for batch in self.batches)

    async def _poll_until(self, reached: Callable[[], bool], period_s: float) -> None:
        """Poll until then. Raises ServerError when the server has been away for too long."""
        answered_s = time.perf_counter()
        while not reached():
            await asyncio.sleep(period_s)
            if await self._try_poll() is not None:
                answered_s = time.perf_counter()
            elif time.perf_counter() - answered_s > PATIENCE_S:
                raise ServerError(f"{self._client.url} has not answered for {PATIENCE_S:g} s: {self._left()}")

    async def _try_poll(self) -> _Progress | None:
        """None when the server does not answer: it may be restarting."""
        try:
            progress = await self._poll()
        except ServerError as error:
            if not self._is_away:
                logger.warning("the server does not say how its batches are, and is asked until it does: %s", error)
            self._is_away, self._is_silent = True, error.status is None
            return None
        self._is_away = self._is_silent = False
        return progress

    async def _poll(self) -> _Progress:
        for position, batch in enumerate(self.batches):
            if not batch.ended:
                answer = await self._client.get_json(f"/v1/batches/{batch.id}")
                self.batches[position] = as_type(answer, Batch)
        counts = [batch.request_counts or RequestCounts() for batch in self.batches]
        usages = [batch.usage for batch in self.batches if batch.usage is not None]
        whole = len(usages) == len(self.batches)
        progress = _Progress(
            time.perf_counter(),
            sum(count.completed for count in counts),
            sum(count.failed for count in counts),
            self._ended(),
            sum(usage.input_tokens for usage in usages) if whole else None,
            sum(usage.output_tokens for usage in usages) if whole else None,
            await read_counter(self._client, GENERATED_METRIC) if self._by_counter else None,
        )
        self._tell(progress.ended, self._backlog)
        return progress

    async def _count_outputs(self) -> None:
        if self._last.output_tokens is not None or not self._is_exhausted:
            return
        usages: list[Usage] = []
        for batch in self.batches:
            if batch.output_file_id is not None:
                usages += output_usages(await self._client.get_bytes(f"/v1/files/{batch.output_file_id}/content"))
        input_tokens = sum(usage.prompt_tokens for usage in usages)
        output_tokens = sum(usage.completion_tokens for usage in usages)
        self._last = replace(self._last, input_tokens=input_tokens, output_tokens=output_tokens)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Also where this is cancelled meanwhile, so that what the server has begun is known to who stops it."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.gather(working, return_exceptions=True)
        raise


def _difference(first: int | None, last: int | None) -> int | None:
    return None if last is None else last - (first or 0)
