"""A bus without power loses the last changes of a batch's record, while the batch goes on."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from services.offline_queue.batches.files import BatchOutputs
from services.offline_queue.batches.tools import BatchTools
from shared.protocol.offline.batches import BatchRecord, BatchStatus
from tests.services.offline_queue.batch_desk import ENDLESS, Desk, answer_text, chat_line

IDS = [str(number) for number in range(20)]


async def submitted(desk: Desk) -> tuple[str, BatchRecord]:
    """With its record as it is then."""
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    record = (await desk.batches.get(batch_id)).value
    assert record is not None
    return batch_id, record


async def test_a_batch_whose_beginning_is_lost_goes_on(desk: Desk) -> None:
    """Its input may be deleted by now."""
    batch_id, first = await submitted(desk)
    async with desk.running(permits=7) as (_, pool):
        begun = await desk.until(batch_id, lambda record: record.request_counts.completed == 7)
        await desk.objects.delete(first.input_file_id)
        await desk.batches.edit(batch_id, lambda _: first)
        for _ in range(100):
            pool.permits.release()
        record = await desk.until_cleared(batch_id)
        assert len(pool.added) == 20, "each once"
    counts = record.request_counts
    assert (record.status, counts.total, counts.completed, counts.failed) == ("completed", 20, 20, 0)
    assert (record.in_progress_at, record.model) == (begun.in_progress_at, begun.model)
    results = await desk.results(record)
    texts = {key: each["response"]["body"]["choices"][0]["message"]["content"] for key, each in results.items()}
    assert texts == {each: answer_text(each) for each in IDS}
    assert await desk.stored_requests(batch_id) == await desk.stored_results(batch_id) == []


@pytest.fixture
def falls_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[[BatchStatus], None]:
    """While its files are finished, once, the record is of this status again."""
    finish = BatchOutputs.finish

    def make(status: BatchStatus) -> None:
        async def finish_and_lose(self: BatchOutputs, record: BatchRecord, now_s: int) -> Any:
            end = await finish(self, record, now_s)
            monkeypatch.setattr(BatchOutputs, "finish", finish)
            lost: dict[str, Any] = {"finalizing_at": None, "cancelling_at": None}
            await desk.batches.edit(record.id, lambda found: replace(found, status=status, **lost))
            return end

        monkeypatch.setattr(BatchOutputs, "finish", finish_and_lose)

    return make


async def test_a_batch_whose_end_was_lost_has_not_expired(
    desk: Desk, falls_back: Callable[[BatchStatus], None]
) -> None:
    falls_back("in_progress")
    batch_id, _ = await submitted(desk)
    async with desk.running(ENDLESS):
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed) == ("completed", 20)
    assert record.expired_at is None and len(await desk.results(record)) == 20


async def test_a_batch_whose_end_was_lost_while_it_was_cleared_ends_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, _ = await submitted(desk)
    clear = BatchTools.clear

    async def lose(self: BatchTools, batch_id: str) -> None:
        """All that was done last."""
        monkeypatch.setattr(BatchTools, "clear", clear)
        lost: Any = {"status": "finalizing", "completed_at": None, "output_file_id": None, "error_file_id": None}
        await desk.batches.edit(batch_id, lambda found: replace(found, **lost))

    async with desk.running(permits=19) as (_, pool):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 19)
        monkeypatch.setattr(BatchTools, "clear", lose)
        pool.permits.release()
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed) == ("completed", 20)
    assert len(await desk.results(record)) == 20
    assert await desk.stored_requests(batch_id) == await desk.stored_results(batch_id) == []


@pytest.mark.parametrize("status", ["in_progress", "validating"])
async def test_a_cancellation_that_was_lost_is_written_again(
    desk: Desk, falls_back: Callable[[BatchStatus], None], status: BatchStatus
) -> None:
    falls_back(status)
    batch_id, _ = await submitted(desk)
    async with desk.running(permits=3):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 3)
        await desk.cancel(batch_id)
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed) == ("cancelled", 3)
    results = await desk.results(record)
    assert len(results) == 20 and sum(each["error"] is not None for each in results.values()) == 17
