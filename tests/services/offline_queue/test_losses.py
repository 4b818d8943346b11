"""What executors held that came back without having signed off: each run that was lost is counted once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.flex import FlexHeld
from shared.scheduling.placement.role import Role
from tests.services.offline_queue.batch_desk import Desk, chat_line
from tests.services.offline_queue.test_moves_on_the_bus import GATEWAY, Peer, ask, offline_queue
from tests.services.offline_queue.test_retries import failures_of
from tests.shared.bus.servers import until

__all__ = ["offline_queue"]


async def come_back(bus: Bus, peer: Peer) -> None:
    """As another incarnation."""
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await executors.put(peer.info.executor_id, replace(peer.info, epoch="another"))


@pytest.mark.usefixtures("offline_queue")
@pytest.mark.parametrize(
    "speaks",
    [
        *("not", "of what it holds", "of what it holds, and is silent again"),
        *("of itself alone", "of itself alone, and is silent again"),
    ],
)
async def test_who_was_silent_before_its_end_has_lost_its_requests_once(
    bus: Bus, desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, speaks: str
) -> None:
    def num_said(event: str) -> int:
        return [record.getMessage() for record in caplog.records].count(event)

    async def be_silent(times: int) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("services.offline_queue.executor_desk.SILENCE_S", 0.1)
            await until(lambda: num_said("executor is silent") == times)

    caplog.set_level("INFO")
    batch_id = await desk.submit([chat_line("a")])
    request_id = f"{batch_id}.1"
    peer = await Peer.registered(bus, "executor-0", Role.MIXED)
    await peer.plan_with(request_id)
    await peer.tell(request_id)
    await ask(bus, FlexHeld(GATEWAY, []))  # answered when what it said is heard
    await be_silent(times=1)
    if speaks.startswith("of what it holds"):
        await peer.tell(request_id)
    elif speaks != "not":
        await peer.beat()
    await ask(bus, FlexHeld(GATEWAY, []))
    if speaks.endswith("again"):
        await be_silent(times=2)
    await come_back(bus, peer)
    await until(lambda: num_said("executor attached") == 2)
    assert await failures_of(desk, batch_id) == ["executor executor-0 was lost"]
