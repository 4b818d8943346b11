"""Requests, results and failures whose batch's record the store has lost, on a real bus."""

import pytest

from services.offline_queue.batches.lines import lines_object
from services.offline_queue.batches.lost_batches import LOST_AGE_S, LostBatches
from services.offline_queue.batches.manager import BatchManager
from shared.bus import Bucket, Bus
from shared.protocol import subjects
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.sampling import FinishReason
from tests.services.offline_queue.batch_desk import MODEL, TOKENIZER, WORK, Desk, ManualClock, StoringPool, chat_line

OF_ANOTHER_MODEL = subjects.of_model("another")
IDS = ["a", "b", "c"]


async def make_sweep(desk: Desk) -> LostBatches:
    manager = BatchManager(desk.bus, MODEL.name, TOKENIZER, MODEL, StoringPool(desk.bus, 0), desk.clock)
    await manager.start()
    return LostBatches(manager.tools)


async def stored(bus: Bus) -> set[str]:
    """Subjects of all that is in the streams."""
    return await bus.subjects(subjects.REQUESTS_STREAM, ">") | await bus.subjects(subjects.RESULTS_STREAM, ">")


async def store_outcomes(bus: Bus, batch_id: str, of: subjects.ModelSubjects = WORK) -> None:
    """A failed run of its first line, and the result of its second."""
    failed, done = f"{batch_id}.1", f"{batch_id}.2"
    result = OfflineResult(done, [], FinishReason.ERROR, error="the engine failed")
    await bus.store_many([(of.failure(failed, "run"), OfflineFailure(failed, "lost")), (of.result(done), result)])


async def lose_record(desk: Desk, batch_id: str) -> None:
    """As a power cut does: not even its deletion is there."""
    await desk.bus.purge(f"KV_{subjects.BATCHES_BUCKET}", f"$KV.{subjects.BATCHES_BUCKET}.{batch_id}")


async def test_what_is_stored_of_a_batch_without_a_record_goes_and_nothing_else(desk: Desk, clock: ManualClock) -> None:
    sweep = await make_sweep(desk)
    lost, kept = [await desk.submit([chat_line(each) for each in IDS]) for _ in range(2)]
    async with desk.running(permits=0):
        for batch_id in (lost, kept):
            await desk.until_status(batch_id, "in_progress")
    await store_outcomes(desk.bus, lost)
    await store_outcomes(desk.bus, kept)
    await store_outcomes(desk.bus, "batch_of_another", OF_ANOTHER_MODEL)
    everything = await stored(desk.bus)
    assert len(everything) == 2 * (3 + 2) + 2
    await lose_record(desk, lost)
    assert await sweep.remove(clock.now_s - LOST_AGE_S) == 0  # too young
    assert await stored(desk.bus) == everything
    assert await sweep.remove(clock.now_s + 60) == 1
    of_lost = {each for each in everything if f".{WORK.model}.{lost}." in each}
    assert len(of_lost) == 5 and await stored(desk.bus) == everything - of_lost
    assert list(await desk.objects.all()) == ["file-1", "file-2", lines_object(kept)]
    await lose_record(desk, kept)
    assert await (await make_sweep(desk)).remove(clock.now_s + 60) == 1
    assert await stored(desk.bus) == {each for each in everything if ".another." in each}


async def test_it_is_looked_again_where_the_bus_was_away(desk: Desk, clock: ManualClock) -> None:
    sweep = await make_sweep(desk)
    assert await sweep.remove(clock.now_s + 60) == 0
    await store_outcomes(desk.bus, "batch_lost")
    before = await stored(desk.bus)
    assert await sweep.remove(clock.now_s + 60) == 0 and await stored(desk.bus) == before
    desk.bus.reconnects += 1
    assert await sweep.remove(clock.now_s + 60) == 1
    assert await stored(desk.bus) == set()


async def test_records_are_read_once_whatever_is_lost(
    desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, num_reads, read = await make_sweep(desk), 0, Bucket.keys

    async def count(bucket: Bucket[object]) -> set[str]:
        nonlocal num_reads
        num_reads += 1
        return await read(bucket)

    for number in range(3):
        await store_outcomes(desk.bus, f"batch_lost_{number}")
    monkeypatch.setattr(Bucket, "keys", count)
    assert await sweep.remove(clock.now_s + 60) == 3
    assert num_reads == 1


async def test_a_batch_that_is_made_again_meanwhile_stays(
    desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Idempotency-Key stands for it though its record is lost, and so a repetition makes it under the same id."""
    sweep = await make_sweep(desk)
    batch_id = await desk.submit([chat_line(each) for each in IDS])
    record = (await desk.batches.get(batch_id)).value
    assert record is not None
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    await lose_record(desk, batch_id)
    before, look = await stored(desk.bus), sweep._newest_s

    async def look_and_make(lost_id: str) -> float:
        newest_s = await look(lost_id)
        await desk.batches.create(lost_id, record)
        return newest_s

    monkeypatch.setattr(sweep, "_newest_s", look_and_make)
    assert await sweep.remove(clock.now_s + 60) == 0
    assert await stored(desk.bus) == before
    async with desk.running():
        assert (await desk.until_cleared(batch_id)).request_counts.completed == len(IDS)
