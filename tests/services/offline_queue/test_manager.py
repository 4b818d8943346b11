"""Batches that run to an end: completed, failed line by line, cancelled, expired."""

import asyncio
import dataclasses
import gc
import json
import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from services.offline_queue.batches.file_sweep import FileSweep
from services.offline_queue.batches.input import BatchInput, ParsedLines
from services.offline_queue.batches.lines import lines_object
from services.offline_queue.batches.manager import BatchStats
from services.offline_queue.batches.tools import BatchTools
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import NotFoundOnBusError
from shared.openai.completions.requests import TEXT
from shared.protocol import subjects
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.sampling import FinishReason
from shared.scheduling.orders.offline.share import Share
from tests.services.offline_queue import batch_desk
from tests.services.offline_queue.batch_desk import (
    MODEL,
    TIMEOUT_S,
    TOKENIZER,
    WORK,
    Desk,
    ManualClock,
    answer_text,
    chat_line,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def assert_nothing_left(desk: Desk, batch_id: str) -> None:
    assert await desk.stored_requests(batch_id) == []
    assert await desk.stored_results(batch_id) == []
    with pytest.raises(NotFoundOnBusError):
        _ = [chunk async for chunk in desk.objects.chunks(lines_object(batch_id))]


async def test_a_batch_completes(desk: Desk) -> None:
    ids = ["first", "second", "third"]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running() as (manager, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.{line}" for line in (1, 2, 3)]
        assert set(pool.discarded) == set(pool.added)
        assert manager.stats().lines_open == 0
    assert (record.status, record.model) == ("completed", MODEL.name)
    counts = record.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    assert None not in (record.in_progress_at, record.finalizing_at, record.completed_at)
    assert record.error_file_id is None
    lines = await desk.read_file(record.output_file_id)
    assert [line["custom_id"] for line in lines] == ids
    assert len({line["id"] for line in lines}) == 3
    for line in lines:
        assert line["id"].startswith("batch_req_")
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        body = line["response"]["body"]
        assert (body["object"], body["model"]) == ("chat.completion", MODEL.name)
        assert body["choices"][0]["message"]["content"] == answer_text(line["custom_id"])
        assert body["choices"][0]["finish_reason"] == "stop"
    usages = [line["response"]["body"]["usage"] for line in lines]
    prompts = [[{"role": "user", "content": f"Say {each}"}] for each in ids]
    assert [u["prompt_tokens"] for u in usages] == [len(TOKENIZER.apply_chat_template(p)) for p in prompts]
    assert record.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert record.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert record.usage.input_tokens_details.cached_tokens == sum(cached) == 9
    await assert_nothing_left(desk, batch_id)


async def test_text_completions_are_trimmed_at_a_stop_string(desk: Desk) -> None:
    line = {"custom_id": "a", "method": "POST", "url": TEXT}
    line |= {"body": {"model": MODEL.name, "prompt": "Say", "max_tokens": 9, "stop": " to"}}
    batch_id = await desk.submit([line], endpoint=TEXT)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    (output,) = await desk.read_file(record.output_file_id)
    assert output["response"]["body"]["object"] == "text_completion"
    assert output["response"]["body"]["choices"][0]["text"] == "The answer"


async def test_lines_fail_alone(desk: Desk) -> None:
    lines = [
        chat_line("good"),
        chat_line("long", body={"messages": [{"role": "user", "content": "word " * MODEL.max_model_len}]}),
        chat_line("crash"),
        chat_line("odd", body={"temperature": "hot"}),
        chat_line("greedy", body={"max_tokens": -1}),
    ]
    batch_id = await desk.submit(lines)
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.1", f"{batch_id}.3"]
    counts = record.request_counts
    assert (record.status, counts.total, counts.completed, counts.failed) == ("completed", 5, 1, 4)
    assert [line["custom_id"] for line in await desk.read_file(record.output_file_id)] == ["good"]
    failures = await desk.read_file(record.error_file_id)
    seen = [(f["custom_id"], f["response"]["status_code"], f["error"]) for f in failures]
    assert sorted(seen) == [("crash", 500, None), ("greedy", 400, None), ("long", 400, None), ("odd", 400, None)]
    errors = {failure["custom_id"]: failure["response"]["body"]["error"] for failure in failures}
    assert (errors["long"]["code"], errors["long"]["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert (errors["crash"]["message"], errors["crash"]["type"]) == ("the engine failed", "server_error")
    assert (errors["odd"]["param"], errors["greedy"]["param"]) == ("temperature", "max_tokens")


async def test_a_result_that_cannot_be_written_ends_its_line_alone(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("first"), chat_line("odd-token"), chat_line("last")])
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 2, 1)
    assert [line["custom_id"] for line in await desk.read_file(record.output_file_id)] == ["first", "last"]
    (failure,) = await desk.read_file(record.error_file_id)
    assert (failure["custom_id"], failure["response"]["status_code"]) == ("odd-token", 500)
    assert failure["response"]["body"]["error"]["message"] == "The result of this request cannot be written."


async def test_a_batch_whose_lines_all_fail_completes(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("a", body={"n": 9}), chat_line("b", body={"top_p": 7})])
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.output_file_id, record.request_counts.failed) == ("completed", None, 2)
    assert len(await desk.read_file(record.error_file_id)) == 2


async def test_progress_shows_while_the_batch_runs(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(10)])
    async with desk.running(permits=4) as (manager, pool):
        record = await desk.until(batch_id, lambda record: record.request_counts.completed == 4)
        counts = record.request_counts
        assert (record.status, counts.total, counts.failed) == ("in_progress", 10, 0)
        assert record.usage.output_tokens > 0
        assert (record.output_file_id, record.error_file_id) == (None, None)
        assert [line["custom_id"] for line in await desk.read_file("file-1-output")] == list("0123")
        assert await desk.stored_requests(batch_id) == [f"{batch_id}.{line}" for line in range(5, 11)]
        stats = manager.stats()
        assert stats == BatchStats(
            1, validating=0, lines_open=6, lines_held=6, held_bytes=stats.held_bytes, lines_done=4
        )
        for _ in range(6):
            pool.permits.release()
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed) == ("completed", 10)


async def test_a_cancelled_batch_keeps_what_it_has(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(6)])
    async with desk.running(permits=2) as (_, pool):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
        await desk.cancel(batch_id)
        await pool.until(lambda: not pool.waiting)
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("cancelled", 2, 0)
    assert record.cancelled_at is not None
    assert [line["custom_id"] for line in await desk.read_file(record.output_file_id)] == ["0", "1"]
    errors = await desk.read_file(record.error_file_id)
    assert [(e["custom_id"], e["response"], e["error"]["code"]) for e in errors] == [
        (str(number), None, "batch_cancelled") for number in range(2, 6)
    ]
    await assert_nothing_left(desk, batch_id)


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_what_no_longer_runs_is_taken_back_beside_other_work(desk: Desk, clock: ManualClock, end: str) -> None:
    """A pool has fifty thousand lines of a batch; to forget them all takes half a second of its process."""
    batch_id = await desk.submit([chat_line(str(number)) for number in range(1_200)], window_s=100)
    async with desk.running(permits=0) as (_, pool):
        await pool.until(lambda: len(pool.waiting) == 1_200)
        discard, others = pool.discard, []

        def discard_between(request_ids: list[str]) -> None:
            asyncio.get_running_loop().call_soon(lambda: others.append(len(pool.waiting)))
            discard(request_ids)

        pool.discard = discard_between  # type: ignore[method-assign]
        if end == "cancelled":
            await desk.cancel(batch_id)
        else:
            clock.now_s += 100
            await desk.bus.store(WORK.result(f"{batch_id}.1"), OfflineResult(f"{batch_id}.1", [], FinishReason.STOP))
        await pool.until(lambda: not pool.waiting)
        assert any(0 < num_waiting < 1_199 for num_waiting in others)
        assert (await desk.until_cleared(batch_id)).status == end


async def until_dropped(desk: Desk, batch_id: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await desk.stored_results(batch_id):
            pass


async def test_a_late_result_is_dropped(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("a")])
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
        await desk.cancel(batch_id)
        await desk.until_cleared(batch_id)
    late = OfflineResult(f"{batch_id}.1", [1], FinishReason.STOP)
    assert await desk.bus.store(WORK.result(late.request_id), late)
    other_id = await desk.submit([chat_line("b")])
    async with desk.running():
        await desk.until_cleared(other_id)
    assert await desk.stored_results(batch_id) == []


async def test_a_late_result_is_dropped_once_the_bus_is_there_again(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("a")])
    late, refused = OfflineResult(f"{batch_id}.1", [1], FinishReason.STOP), list[str]()

    def may_send(subject: str) -> bool:
        if "MSG.DELETE" not in subject or refused:
            return True
        refused.append(subject)
        return False

    async with desk.running(permits=0) as (manager, _):
        await desk.until_status(batch_id, "in_progress")
        await desk.cancel(batch_id)
        await desk.until_cleared(batch_id)
        manager.tools.bus.fence(may_send)
        assert await desk.bus.store(WORK.result(late.request_id), late)
        await until_dropped(desk, batch_id)
    assert refused


async def test_a_result_of_no_line_changes_nothing(desk: Desk) -> None:
    """One that is there when the batch is taken up, and one that comes later."""
    batch_id = await desk.submit([chat_line("a")])

    async def store(line: int) -> None:
        stray = OfflineResult(f"{batch_id}.{line}", [1], FinishReason.STOP)
        assert await desk.bus.store(WORK.result(stray.request_id), stray)

    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
        await store(1000)
    async with desk.running(permits=0):
        await store(2000)
    async with desk.running():
        counts = (await desk.until_cleared(batch_id)).request_counts
    assert (counts.total, counts.completed, counts.failed) == (1, 1, 0)
    await assert_nothing_left(desk, batch_id)


async def test_a_result_that_comes_while_its_batch_is_cleared_is_dropped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second executor's, that had the request as well and could not say so before."""
    clear, stored = BatchTools.clear, list[str]()

    async def then_late(tools: BatchTools, batch_id: str) -> None:
        await clear(tools, batch_id)
        record = (await tools.batches.get(batch_id)).value
        if record is None or record.status != "completed":  # before it is read in, it is cleared as well
            return
        late = OfflineResult(f"{batch_id}.1", [1], FinishReason.STOP)
        assert await desk.bus.store(WORK.result(late.request_id), late)
        stored.append(late.request_id)
        await until_dropped(desk, batch_id)

    monkeypatch.setattr(BatchTools, "clear", then_late)
    batch_id = await desk.submit([chat_line("a")])
    async with desk.running():
        assert (await desk.until_cleared(batch_id)).status == "completed"
    assert stored == [f"{batch_id}.1"]
    await assert_nothing_left(desk, batch_id)


async def test_a_cancelled_batch_waits_for_no_place_to_be_read_and_takes_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.offline_queue.batches.tools.MOST_READ", 1)
    async with desk.running() as (manager, _):
        await manager.tools.places.acquire()
        cancelled, kept = [await desk.submit([chat_line("a")]) for _ in range(2)]
        await desk.cancel(cancelled)
        assert (await desk.until_cleared(cancelled)).status == "cancelled"
        assert (await desk.until_status(kept, "validating")).request_counts.total == 0
        manager.tools.places.release()
        assert (await desk.until_cleared(kept)).status == "completed"
        assert not manager.tools.places.locked()


async def test_a_batch_cancelled_before_it_was_read(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("a")])
    await desk.cancel(batch_id)
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == []
    assert (record.status, record.request_counts.total) == ("cancelled", 0)
    assert (record.output_file_id, record.error_file_id) == (None, None)


async def test_an_expired_batch_keeps_what_it_has(desk: Desk, clock: ManualClock) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(5)], window_s=100)
    async with desk.running(permits=2) as (_, pool):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
        clock.now_s += 100
        pool.permits.release()
        record = await desk.until_cleared(batch_id)
        assert not pool.waiting
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("expired", 3, 0)
    assert record.expired_at == int(clock.now_s)
    errors = await desk.read_file(record.error_file_id)
    assert [(e["custom_id"], e["response"], e["error"]["code"]) for e in errors] == [
        ("3", None, "batch_expired"),
        ("4", None, "batch_expired"),
    ]
    assert set(await desk.results(record)) == set("01234")


async def test_an_idle_batch_expires_by_itself(nats_url: str, bus: Bus) -> None:
    desk = await Desk.open(nats_url, bus, SystemClock())
    batch_id = await desk.submit([chat_line("a")], window_s=2)
    async with desk.running(permits=0) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.discarded == [f"{batch_id}.1"]
    assert (record.status, record.output_file_id, record.request_counts.left) == ("expired", None, 1)


async def test_a_batch_grows_urgent_as_its_window_nears(desk: Desk, clock: ManualClock) -> None:
    batch_id = await desk.submit([chat_line("a")], window_s=86_400)
    await desk.batches.edit(batch_id, lambda record: replace(record, client_id="ann", client_weight=3.0))
    async with desk.running(permits=0) as (manager, _):
        await desk.until_status(batch_id, "in_progress")
        assert manager.share_of(batch_id) == Share("ann", 3.0, 1.0)
        clock.now_s += 86_400 * 7 / 8
        assert manager.share_of(batch_id) == Share("ann", 3.0, 4.0)
        assert manager.share_of("batch_unknown") == Share()


async def test_batches_run_together(desk: Desk) -> None:
    long = await desk.submit([chat_line(f"long {number}") for number in range(1500)])
    short = await desk.submit([chat_line("short")])
    async with desk.running():
        short_record = await desk.until_status(short, "completed")
        long_record = (await desk.batches.get(long)).value
        assert long_record is not None
        assert long_record.status in ("validating", "in_progress")
        long_record = await desk.until_cleared(long)
    assert (short_record.request_counts.completed, long_record.request_counts.completed) == (1, 1500)


async def test_a_batch_of_many_lines(desk: Desk) -> None:
    """Several of each group that is read, stored, fed or written at once."""
    ids = [f"request {number}" for number in range(1500)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running() as (manager, _):
        record = await desk.until_cleared(batch_id)
        assert manager.stats().lines_done in (0, 1500)
    counts = record.request_counts
    assert (record.status, counts.total, counts.completed) == ("completed", 1500, 1500)
    lines = await desk.read_file(record.output_file_id)
    assert [line["custom_id"] for line in lines] == ids
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert texts == [answer_text(each) for each in ids]
    await assert_nothing_left(desk, batch_id)


async def test_memory_does_not_grow_with_the_files(desk: Desk) -> None:
    """A batch of 20 MB, whose requests the pool does not keep: the reader, the progress and the writer remain."""
    line = chat_line("{}", body={"messages": [{"role": "user", "content": "x"}], "user": "u" * 100_000})
    text = json.dumps(line)
    batch_id = await desk.submit("".join(text.replace("{}", str(n)) + "\n" for n in range(200)).encode())
    gc.collect()
    tracemalloc.start()
    try:
        async with desk.running():
            record = await desk.until_cleared(batch_id)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (record.status, record.request_counts.completed) == ("completed", 200)
    assert peak_bytes < 12_000_000


async def refuse_requests(bus: Bus, max_messages: int) -> None:
    """As where the disk is full; -1 ends it."""
    config = (await bus._js.stream_info(subjects.REQUESTS_STREAM)).config
    await bus._js.update_stream(dataclasses.replace(config, max_msgs=max_messages))


async def until_logged(caplog: pytest.LogCaptureFixture, event: str, times: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while [record.message for record in caplog.records].count(event) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_lines_that_cannot_be_stored_are_not_read_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[int] = []
    parse = BatchInput.parse

    def recorded(self: BatchInput, group: list[tuple[int, bytes]]) -> ParsedLines:
        read.extend(number for number, _ in group)
        return parse(self, group)

    monkeypatch.setattr(BatchInput, "parse", recorded)
    await refuse_requests(desk.bus, 70)
    batch_id = await desk.submit([chat_line(str(number)) for number in range(200)])
    async with desk.running():
        await until_logged(caplog, "batch waits to be stored", 2)
        await refuse_requests(desk.bus, -1)
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed) == ("completed", 200)
    assert read == list(range(1, 201))


async def test_a_batch_that_cannot_be_stored_expires(
    desk: Desk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await refuse_requests(desk.bus, 1)
    batch_id = await desk.submit([chat_line("a"), chat_line("b")], window_s=100)
    async with desk.running():
        await until_logged(caplog, "batch waits to be stored", 1)
        clock.now_s += 100
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.expired_at, record.output_file_id) == ("expired", int(clock.now_s), None)
    assert await desk.stored_requests(batch_id) == []


async def test_a_line_that_the_bus_never_takes_fails_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the gateway refuses it over HTTP."""
    monkeypatch.setattr(batch_desk, "MODEL", replace(MODEL, max_model_len=1_000_000))
    large = chat_line("large", url=TEXT) | {"body": {"model": MODEL.name, "prompt": [40_000] * 400_000}}
    small = chat_line("small", url=TEXT) | {"body": {"model": MODEL.name, "prompt": "Once"}}
    batch_id = await desk.submit([large, small], endpoint=TEXT)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("completed", 1, 1)
    (line,) = await desk.read_file(record.error_file_id)
    error = line["response"]["body"]["error"]
    assert (line["custom_id"], line["response"]["status_code"], error["code"]) == ("large", 413, "request_too_large")


async def test_a_clock_that_is_set_ends_no_window(desk: Desk, clock: ManualClock) -> None:
    batch_id = await desk.submit([chat_line("a"), chat_line("b")], window_s=100)
    async with desk.running(permits=1) as (manager, pool):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 1)
        clock.set_s += 1_000_000
        assert not manager._lives[batch_id]._is_expired()
        pool.permits.release()
        assert (await desk.until_cleared(batch_id)).status == "completed"


@pytest.mark.parametrize("request_id", ["batch_1." + "9" * 5000, "batch_1.3", "batch_9.1", "", "batch_1.1"])
async def test_a_result_that_makes_no_sense_fails_its_line_alone(desk: Desk, request_id: str) -> None:
    batch_id = await desk.submit([chat_line(f"request {number}") for number in range(3)])
    assert batch_id == "batch_1"
    async with desk.running(permits=0) as (_, pool):
        await pool.until(lambda: len(pool.waiting) == 3)
        odd = OfflineResult(request_id, [], FinishReason.ERROR, error="[" * 100_000)
        await desk.bus.store(WORK.result(f"{batch_id}.1"), odd)
        await desk.bus.store(WORK.failure(f"{batch_id}.2", "run"), OfflineFailure(request_id, "it died"))
        await pool.until(lambda: (f"{batch_id}.2", 1) in pool.retried)
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.completed, record.request_counts.failed) == ("completed", 2, 1)
    (failed,) = [line for line in (await desk.results(record)).values() if line["response"]["status_code"] != 200]
    assert failed["custom_id"] == "request 0"


HUGE = 10**400


ENDED = {"status": "completed", "cleared": True, "completed_at": HUGE}


@pytest.mark.parametrize("change", [{"expires_at": HUGE}, {"expires_at": -HUGE}, ENDED])
async def test_records_with_numbers_beyond_all_measure_are_as_good_as_absent(
    desk: Desk, change: dict[str, Any]
) -> None:
    batch_id = await desk.submit([chat_line("request")])
    anything = await desk.bus.bucket(subjects.BATCHES_BUCKET, dict)
    record = (await anything.get(batch_id)).value
    assert record is not None
    await anything.put("batch_odd", record | {"id": "batch_odd"} | change)
    files = await desk.bus.bucket(subjects.FILES_BUCKET, dict)
    await files.put(
        "file-odd", {"id": "file-odd", "bytes": 1, "created_at": 1, "filename": "", "purpose": "batch"} | change
    )
    async with desk.running() as (manager, _):
        sweeping = asyncio.create_task(FileSweep(manager.tools, manager.is_being_read).run())
        await desk.until_cleared(batch_id)
        later = await desk.submit([chat_line("request")])
        await anything.put("batch_odd_too", record | {"id": "batch_odd_too"} | change)
        await desk.until_cleared(later)
        assert not sweeping.done()
        sweeping.cancel()
        await FileSweep(manager.tools, manager.is_being_read, keep_batches_s=1.0).forget_old()
