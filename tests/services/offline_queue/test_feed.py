"""How much of a batch waits in memory, and that the rest comes in its turn."""

from services.offline_queue.batches.lines import BatchLine
from services.offline_queue.batches.progress import REQUEST_BYTES, BatchProgress
from services.offline_queue.batches.room import PoolRoom
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.packed_prompt import TOKEN_BYTES
from tests.services.offline_queue.batch_desk import Desk, chat_line

LINE_BYTES = REQUEST_BYTES + 200 * TOKEN_BYTES  # more than any line here takes
ROOM_LINES = 20


def lines(count: int) -> list[str]:
    return [f"request {number}" for number in range(count)]


async def submit(desk: Desk, count: int) -> str:
    return await desk.submit([chat_line(each) for each in lines(count)])


async def test_a_batch_holds_no_more_lines_than_there_is_room_for(desk: Desk) -> None:
    batch_id = await submit(desk, 700)
    async with desk.running(pool_bytes=ROOM_LINES * REQUEST_BYTES) as (manager, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.most_waiting <= ROOM_LINES
        assert pool.added == [f"{batch_id}.{line}" for line in range(1, 701)]
        assert manager.stats().lines_held == 0
    assert (record.status, record.request_counts.completed) == ("completed", 700)
    assert [line["custom_id"] for line in await desk.read_file(record.output_file_id)] == lines(700)


async def test_a_request_larger_than_the_room_still_runs(desk: Desk) -> None:
    batch_id = await submit(desk, 5)
    async with desk.running(pool_bytes=1) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.most_waiting == 1
    assert (record.status, record.request_counts.completed) == ("completed", 5)


async def test_batches_at_work_share_the_room(desk: Desk) -> None:
    made = [await submit(desk, 200) for _ in range(4)]
    async with desk.running(permits=0, pool_bytes=4 * ROOM_LINES * LINE_BYTES) as (manager, pool):
        for batch_id in made:
            await desk.until_status(batch_id, "in_progress")
        await pool.until(lambda: {each.rpartition(".")[0] for each in pool.waiting} == set(made))
    async with desk.running(permits=0, pool_bytes=4 * ROOM_LINES * LINE_BYTES) as (manager, pool):
        held = {batch_id: sum(each.startswith(f"{batch_id}.") for each in pool.waiting) for batch_id in made}
        assert all(ROOM_LINES <= count <= ROOM_LINES * LINE_BYTES // REQUEST_BYTES + 1 for count in held.values())
        stats = manager.stats()
        assert (stats.lines_open, stats.lines_held) == (800, sum(held.values()))
        assert stats.held_bytes <= 4 * (ROOM_LINES + 1) * LINE_BYTES
    async with desk.running():
        for batch_id in made:
            assert (await desk.until_cleared(batch_id)).request_counts.completed == 200


async def test_batches_that_come_one_after_the_other_take_no_more_than_there_is(desk: Desk) -> None:
    """Each would have its share, and those before it more than theirs."""
    pool_bytes = 1000 * REQUEST_BYTES
    async with desk.running(permits=0, pool_bytes=pool_bytes) as (manager, pool):
        for _ in range(6):
            batch_id = await submit(desk, 1100)
            life = manager._lives[(await desk.until_status(batch_id, "in_progress")).id]
            await pool.until(lambda life=life: life._feed is not None and not life._feed.is_low)  # type: ignore[misc]
        assert manager.stats().held_bytes < 1.5 * pool_bytes


async def test_a_kill_between_two_fills_loses_nothing(desk: Desk) -> None:
    batch_id = await submit(desk, 150)
    for completed in (30, 60):
        async with desk.running(permits=30, pool_bytes=ROOM_LINES * REQUEST_BYTES):
            await desk.until(batch_id, lambda record, count=completed: record.request_counts.completed == count)  # type: ignore[misc]
    async with desk.running(pool_bytes=ROOM_LINES * REQUEST_BYTES) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.{line}" for line in range(61, 151)]
    assert (record.status, record.request_counts.completed) == ("completed", 150)


async def test_a_batch_that_is_cancelled_gives_its_room_back(desk: Desk) -> None:
    batch_id = await submit(desk, 100)
    async with desk.running(permits=0, pool_bytes=ROOM_LINES * REQUEST_BYTES) as (manager, pool):
        await pool.until(lambda: bool(pool.waiting))
        assert manager.is_open(f"{batch_id}.1") and manager.is_open(f"{batch_id}.100")
        assert not manager.is_open(f"{batch_id}.101") and not manager.is_open("batch_9.1")
        await desk.cancel(batch_id)
        await pool.until(lambda: not pool.waiting)
        stats = manager.stats()
        assert (stats.batches, stats.lines_open, stats.lines_held, stats.held_bytes) == (1, 0, 0, 0)
        record = await desk.until_cleared(batch_id)
        assert not pool.waiting and not manager.is_open(f"{batch_id}.1")
    counts = record.request_counts
    assert (counts.completed, counts.failed) == (0, 0)


def test_only_what_is_held_counts() -> None:
    room = PoolRoom(1)
    progress = BatchProgress("batch_1", room)
    for number in (1, 2, 4):
        progress.add_line(BatchLine(number, "", 10 * number))
    assert progress.add_request(1, 7) and progress.add_request(2, 8)
    assert (progress.num_held, progress.held_bytes) == (2, 2 * REQUEST_BYTES + 30 * TOKEN_BYTES)
    result = OfflineResult("", [1], FinishReason.STOP)
    assert progress.add_result(1, result) and progress.add_result(4, result)
    assert (progress.num_held, progress.held_bytes) == (1, REQUEST_BYTES + 20 * TOKEN_BYTES)
    assert not progress.add_request(4, 9) and progress.take_done_requests() == [7, 9]
    assert room.held_bytes == progress.held_bytes and progress.take_held() == ["batch_1.2"]
    assert (progress.num_held, progress.held_bytes, room.held_bytes, progress.num_open) == (0, 0, 0, 1)
    assert progress.add_result(2, result) and progress.held_bytes == 0


def test_an_executor_goes_on_with_a_request_that_is_not_here_yet() -> None:
    awaited = {"batch_1.7"}
    pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None, awaited.__contains__)
    assert pool.settle("executor-0", ["batch_1.7", "batch_1.8"], []) == ["batch_1.8"]
    pool.check_integrity()
