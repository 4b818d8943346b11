"""A store that has lost its newest messages: what is open runs again, and what is in a file stays counted."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from services.local.stack.machine import free_port
from services.offline_queue.batches import records as batch_records
from shared.bus import Bus
from shared.bus.streams import Raw
from shared.protocol import subjects
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.sampling import FinishReason
from tests.services.offline_queue.batch_desk import TIMEOUT_S, WORK, Desk, chat_line
from tests.services.offline_queue.test_restarts import assert_complete, nats_server

IDS = [f"request {number}" for number in range(12)]


async def lose_requests(desk: Desk, batch_id: str, count: int) -> list[str]:
    """The newest; their ids."""
    read = desk.bus.read(subjects.REQUESTS_STREAM, WORK.batch_requests(batch_id), OfflineRequest)
    lost = [stored async for stored in read][-count:]
    for stored in lost:
        await desk.bus.delete_stored(subjects.REQUESTS_STREAM, stored.sequence)
    return [stored.message.request.request_id for stored in lost]


async def lose_results(desk: Desk, batch_id: str) -> None:
    await desk.bus.purge(subjects.RESULTS_STREAM, WORK.batch_results(batch_id))


async def test_lost_requests_are_read_from_the_input_file_again(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running(permits=4):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 4)
    lost = await lose_requests(desk, batch_id, 5)
    async with desk.running() as (_, pool):
        await assert_complete(desk, await desk.until_cleared(batch_id), IDS)
        assert pool.added == [f"{batch_id}.{line}" for line in range(5, 13)]
        assert pool.added[-5:] == lost


async def test_lost_results_of_lines_in_the_output_file_stay_counted(desk: Desk) -> None:
    """Each of their requests is gone as well: it was deleted when its result was durable."""
    complete = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running():
        usage = (await desk.until_cleared(complete)).usage
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running(permits=7):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 7)
    await lose_results(desk, batch_id)
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.{line}" for line in range(8, 13)]
    await assert_complete(desk, record, IDS)
    assert record.usage == usage


async def test_results_lost_before_a_batch_is_cancelled(desk: Desk) -> None:
    """Those that are in the output file are completed all the same."""
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running(permits=7):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 7)
        await lose_results(desk, batch_id)
        await desk.cancel(batch_id)
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("cancelled", 7, 0)
    assert len(await desk.read_file(record.output_file_id)) == 7


async def test_results_lost_while_a_batch_ends(desk: Desk) -> None:
    """Whether they are in the output file already or not."""
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running() as (_, pool):
        await pool.until(lambda: len(pool.discarded) == len(IDS))
        await lose_results(desk, batch_id)
        await assert_complete(desk, await desk.until_cleared(batch_id), IDS)


async def test_results_that_are_nowhere_once_the_batch_was_finalizing_are_computed_again(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running(permits=7):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 7)
    await desk.batches.edit(batch_id, batch_records.finalizing(batch_records.BatchCounts(12), 1))
    await lose_requests(desk, batch_id, 2)
    async with desk.running() as (_, pool):
        await assert_complete(desk, await desk.until_cleared(batch_id), IDS)
        assert pool.added == [f"{batch_id}.{line}" for line in range(8, 13)]


async def test_a_lost_request_without_its_input_file_fails_alone(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    await lose_requests(desk, batch_id, 2)
    await desk.objects.delete("file-1")
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("completed", 10, 2)
    errors = await desk.read_file(record.error_file_id)
    assert [error["custom_id"] for error in errors] == IDS[-2:]
    assert "input file" in errors[0]["response"]["body"]["error"]["message"]


async def test_a_store_that_comes_back_as_it_was_earlier(tmp_path: Path) -> None:
    """As after a power cut without syncing; those who follow its streams live on, and read on."""
    port, store, earlier = free_port(), tmp_path / "nats", tmp_path / "earlier"
    with nats_server(port, store):
        bus = await Bus.connect(f"nats://127.0.0.1:{port}", "test")
        await bus.ensure_streams()
        desk = await Desk.open(f"nats://127.0.0.1:{port}", bus)
        batch_id = await desk.submit([chat_line(each) for each in IDS])
        async with desk.running(permits=3):
            await desk.until(batch_id, lambda record: record.request_counts.completed == 3)
    shutil.copytree(store, earlier)
    with nats_server(port, store):
        running = desk.running(permits=5)
        _, pool = await running.__aenter__()
        await desk.until(batch_id, lambda record: record.request_counts.completed == 8)
    shutil.rmtree(store)
    earlier.rename(store)
    with nats_server(port, store):
        await pool._bus.wait_reconnected(0, TIMEOUT_S)
        for _ in range(12):
            pool.permits.release()
        await assert_complete(desk, await desk.until_cleared(batch_id), IDS)
        await running.__aexit__(None, None, None)
        await bus.close()


@pytest.mark.parametrize("num_new", [1, 2, 3])
async def test_a_follower_of_a_store_that_has_lost_messages_hears_of_the_new_ones(tmp_path: Path, num_new: int) -> None:
    """Also where as many are there as it has read, or more."""
    port, store, earlier = free_port(), tmp_path / "nats", tmp_path / "earlier"
    subject, stream = WORK.result, subjects.RESULTS_STREAM

    async def put(number: int) -> None:
        await bus.store(subject(f"batch_1.{number}"), OfflineResult(f"batch_1.{number}", [], FinishReason.STOP))

    with nats_server(port, store):
        bus = await Bus.connect(f"nats://127.0.0.1:{port}", "test")
        await bus.ensure_streams()
        await put(1)
    shutil.copytree(store, earlier)
    with nats_server(port, store):
        await bus.wait_reconnected(0, TIMEOUT_S)
        await put(2)
        await put(3)
        following = bus.follow_raw(stream, WORK.all_results)
        assert [raw.sequence if raw else None async for raw in _first(following, 4)] == [1, 2, 3, None]
    shutil.rmtree(store)
    earlier.rename(store)
    with nats_server(port, store):
        await bus.wait_reconnected(1, TIMEOUT_S)
        new = range(4, 4 + num_new)
        for number in new:
            await put(number)
        there = [subject(f"batch_1.{number}") for number in (1, *new)]
        assert [raw and raw.subject async for raw in _first(following, len(there))] == there
        await following.aclose()
        await bus.close()


async def _first(items: AsyncGenerator[Raw | None], count: int) -> AsyncIterator[Raw | None]:
    for _ in range(count):
        yield await asyncio.wait_for(anext(items), TIMEOUT_S)
