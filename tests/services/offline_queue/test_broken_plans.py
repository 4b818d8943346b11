"""An executor whose picture no plan can be made of is begun with anew, and the others get theirs. Records that are not
of their keys are nobody's."""

import logging

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.offline_queue.scheduler import Scheduler
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.steps import StepPlan
from shared.scheduling.placement.role import Role
from tests.services.offline_queue.batch_desk import Desk, chat_line
from tests.services.offline_queue.test_moves_on_the_bus import Peer, offline_queue, submit

__all__ = ["offline_queue"]


REQUEST = "flex-client.one-1"


@pytest.mark.usefixtures("offline_queue")
async def test_a_plan_that_cannot_be_made_ends_no_service(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = Scheduler.plan, ["executor-0"]

    def plan(scheduler: Scheduler) -> list[StepPlan]:
        if scheduler.info.executor_id in broken:
            broken.remove(scheduler.info.executor_id)
            raise ZeroDivisionError("a picture that makes no sense")
        return whole(scheduler)

    monkeypatch.setattr(Scheduler, "plan", plan)
    peer = await Peer.registered(bus, "executor-0", Role.MIXED)
    await submit(bus, REQUEST)
    await peer.plan_with(REQUEST)
    (said,) = [record for record in caplog.records if record.exc_info]
    assert not broken and said.executor_id == "executor-0"
    other = await Peer.registered(bus, "executor-1", Role.MIXED)
    await submit(bus, "flex-client.two-1")
    await other.plan_with("flex-client.two-1")


@pytest.mark.usefixtures("offline_queue")
async def test_a_registration_under_another_key_replaces_nobody(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer = await Peer.registered(bus, "executor-0", Role.MIXED)
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await executors.put("executor-2", replace(peer.info, epoch="another"))
    later = await Peer.registered(bus, "executor-1", Role.MIXED)
    await submit(bus, "flex-client.two-1")
    await later.plan_with("flex-client.two-1")  # it comes behind the other registrations
    await submit(bus, REQUEST)
    await peer.plan_with(REQUEST)
    attached = [(each.executor_id, each.epoch) for each in caplog.records if each.message == "executor attached"]
    assert attached == [("executor-0", peer.info.epoch), ("executor-1", later.info.epoch)]


async def test_a_batch_under_another_key_is_nobodys(desk: Desk) -> None:
    """It ended the service that carries all batches."""
    batch_id = await desk.submit([chat_line("a")])
    record = (await desk.batches.get(batch_id)).value
    assert record is not None
    await desk.batches.put("another", record)
    async with desk.running() as (_, pool):
        await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.1"]
    async with desk.running() as (_, pool):
        await desk.batches.put("third", replace(record, status="validating"))
        second = await desk.submit([chat_line("b")])
        await desk.until_cleared(second)
        assert pool.added == [f"{second}.1"]
    for key in ("another", "third"):
        assert (await desk.batches.get(key)).value == record
    assert record.status == "validating" and record.output_file_id is None
