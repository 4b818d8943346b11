"""Requests whose runs fail: tried again, counted, given up at last; and who else runs beside them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from services.executor.results import ResultStore
from services.offline_queue.batches.manager import BatchManager
from shared.bus import Bus
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineFailure, OfflineRequest, OfflineResult
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import StepStarted
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.request import Kind
from tests.services.gateway.gateway_rig import MODEL as SERVED
from tests.services.gateway.gateway_rig import GatewayRig
from tests.services.offline_queue.batch_desk import MODEL, TIMEOUT_S, TOKENIZER, WORK, Desk, chat_line

MAX_FAILURES = 3


class Counter:
    """The real manager over the real pool; the test is the executor."""

    def __init__(self, desk: Desk) -> None:
        self.changed = asyncio.Event()
        self.pool = OfflinePool(FairShare(FcfsOrder()), self.changed.set, lambda _, __: None)
        self.manager = BatchManager(
            desk.bus, MODEL.name, TOKENIZER, MODEL, self.pool, desk.clock, max_failures=MAX_FAILURES
        )
        self.bus = desk.bus

    async def __aenter__(self) -> Counter:
        await self.manager.start()
        self.running = asyncio.create_task(self.manager.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def waiting(self) -> list[str]:
        return [request.request_id for request in self.pool.in_order()]

    async def fail(self, request_id: str, why: str, is_told_first: bool = True) -> None:
        """It enters, and its run fails; the executor tells of the end before or after the failure is stored."""
        assert self.pool.take(request_id, "executor-0").request_id == request_id
        if is_told_first:
            self.pool.settle("executor-0", [], [request_id], [request_id])
        store = ResultStore(self.bus, WORK)
        store.put_failure(OfflineFailure(request_id, why))
        await store.drain(TIMEOUT_S)


async def failures_of(desk: Desk, batch_id: str) -> list[str]:
    read = desk.bus.read(subjects.RESULTS_STREAM, WORK.batch_failures(batch_id), OfflineFailure)
    return [stored.message.reason async for stored in read]


@pytest.mark.parametrize("is_told_first", [True, False])
async def test_a_failed_run_is_tried_again(desk: Desk, is_told_first: bool) -> None:
    batch_id = await desk.submit([chat_line("a")])
    request_id = f"{batch_id}.1"
    async with Counter(desk) as counter:
        await counter.until(lambda: counter.waiting() == [request_id])
        await counter.fail(request_id, "the engine failed", is_told_first)
        if not is_told_first:
            while not counter.pool._items[request_id].has_failed:
                await asyncio.wait_for(asyncio.sleep(0), TIMEOUT_S)
            counter.pool.settle("executor-0", [], [request_id], [request_id])
        await counter.until(lambda: counter.waiting() == [request_id])
        counter.pool.check_integrity()
        result = OfflineResult(request_id, TOKENIZER.encode("Fine."), FinishReason.STOP)
        await desk.bus.store(WORK.result(request_id), result)
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("completed", 1, 0)
    assert await failures_of(desk, batch_id) == []


async def test_a_request_is_given_up_with_its_reason_and_the_others_run(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("poison"), chat_line("good")])
    poison, good = f"{batch_id}.1", f"{batch_id}.2"
    async with Counter(desk) as counter:
        await counter.until(lambda: counter.waiting() == [poison, good])
        for number in range(MAX_FAILURES):
            await counter.until(lambda: poison in counter.waiting())
            await counter.fail(poison, f"reason {number}")
        await desk.until(batch_id, lambda record: record.request_counts.failed == 1)
        await desk.bus.store(WORK.result(good), OfflineResult(good, TOKENIZER.encode("Fine."), FinishReason.STOP))
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("completed", 1, 1)
    (line,) = await desk.read_file(record.error_file_id)
    assert (line["custom_id"], line["response"]["status_code"]) == ("poison", 500)
    message = line["response"]["body"]["error"]["message"]
    assert message == "given up after 3 failed runs; the last: reason 2"
    assert await failures_of(desk, batch_id) == []


async def test_a_result_that_the_bus_never_takes_fails_its_line(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("endless"), chat_line("good")])
    endless, good = f"{batch_id}.1", f"{batch_id}.2"
    async with Counter(desk) as counter:
        await counter.until(lambda: counter.waiting() == [endless, good])
        store = ResultStore(desk.bus, WORK)
        store.put(OfflineResult(endless, [1] * 10_000_000, FinishReason.LENGTH))
        store.put(OfflineResult(good, TOKENIZER.encode("Fine."), FinishReason.STOP))
        await store.drain(TIMEOUT_S)
        record = await desk.until_cleared(batch_id)
    assert (record.request_counts.completed, record.request_counts.failed) == (1, 1)
    (line,) = await desk.read_file(record.error_file_id)
    assert (line["custom_id"], line["response"]["status_code"]) == ("endless", 500)
    assert "more than the bus takes" in line["response"]["body"]["error"]["message"]


async def test_failures_outlive_the_offline_queue(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("poison")])
    poison = f"{batch_id}.1"
    for number in range(MAX_FAILURES):
        async with Counter(desk) as counter:
            await counter.until(lambda pool=counter: pool.waiting() == [poison])  # type: ignore[misc]
            assert counter.pool.is_suspect(poison) == (number >= 2)
            await counter.fail(poison, "again")
    async with Counter(desk):
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.failed) == ("completed", 1)


async def test_invalid_lines_are_not_tried(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("odd", body={"temperature": "hot"}), chat_line("crash"), chat_line("good")])
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.2", f"{batch_id}.3"]
        assert pool.retried == []
    counts = record.request_counts
    assert (counts.completed, counts.failed) == (1, 2)


def test_suspects_enter_one_at_a_time() -> None:
    """See ``Scheduler._candidates``."""
    pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)
    pool.add([_request(line) for line in range(1, 4)])
    pool.retry("batch_1.1", 1)
    pool.retry("batch_1.2", 2)
    pool.retry("batch_1.3", 2)
    assert [pool.is_suspect(f"batch_1.{line}") for line in (1, 2, 3)] == [False, True, True]
    assert not pool.holds_suspect("executor-0")
    pool.take("batch_1.2", "executor-0")
    assert pool.holds_suspect("executor-0") and not pool.holds_suspect("executor-1")
    pool.discard(["batch_1.2"])
    assert not pool.holds_suspect("executor-0")


async def test_an_executor_that_is_killed_counts_against_what_it_ran(tmp_path: Path) -> None:
    """With a limit of one, a kill gives up what was running; what came later runs."""
    with GatewayRig(tmp_path) as rig:
        rig.start_offline_queue("--preset", "sarathi++", "--max-failures", "1")
        rig.start_executor("executor-0", "--preset", "sarathi++")
        rig.start_gateway()
        rig.wait_ready()
        bus = await Bus.connect(rig.nats_url, "test")
        steps: asyncio.Queue[StepStarted] = asyncio.Queue()
        await bus.subscribe(subjects.STEPS, StepStarted, steps.put)
        batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
        try:
            batch_id = await asyncio.to_thread(_submit, rig, 3)
            async with asyncio.timeout(TIMEOUT_S):
                while len([each for each in (await steps.get()).states if each.num_computed_tokens]) < 3:
                    pass
            rig.stop("executor-0", signal.SIGKILL)
            rig.start_executor("executor-0", "--preset", "sarathi++")
            async with asyncio.timeout(TIMEOUT_S):
                async for entry in batches.watch():
                    if entry is not None and entry.key == batch_id and entry.value and entry.value.cleared:
                        record = entry.value
                        break
        finally:
            await bus.close()
        counts = record.request_counts
        assert (record.status, counts.completed, counts.failed) == ("completed", 0, 3)
        assert record.error_file_id is not None
        lines = [json.loads(line) for line in rig.openai.files.content(record.error_file_id).text.splitlines()]
        messages = {line["response"]["body"]["error"]["message"] for line in lines}
        assert messages == {"given up after 1 failed runs; the last: executor executor-0 was lost"}


def _submit(rig: GatewayRig, count: int) -> str:
    body = {"model": SERVED, "prompt": "Once upon a time", "max_tokens": 7000, "ignore_eos": True}
    return rig.submit_batch([body] * count)


def _request(line: int) -> OfflineRequest:
    generate = GenerateRequest(f"batch_1.{line}", Kind.OFFLINE, [1, 2], SamplingParams(4), 0.0)
    return OfflineRequest(generate, "batch_1", line, str(line), MODEL.name)
