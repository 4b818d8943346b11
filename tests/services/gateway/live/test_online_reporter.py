"""What the gateway reports of online requests, as tokens arrive from the bus."""

import asyncio

import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.profiling.online import OnlineServed
from shared.protocol.sampling import FinishReason
from tests.services.gateway.live.test_tracker import GATEWAY, Front, Peer, alive, front, peer

__all__ = ["front", "peer"]


class Reports:
    """All reports so far."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[OnlineServed] = asyncio.Queue()
        self.seen: list[OnlineServed] = []

    async def listen(self, bus: Bus) -> None:
        await bus.subscribe(subjects.ONLINE_SERVED, OnlineServed, self._queue.put)
        await bus.flush()

    async def until_finished(self, count: int) -> None:
        while sum(len(report.finished) for report in self.seen) < count:
            self.seen.append(await asyncio.wait_for(self._queue.get(), 10))

    def samples(self, metric: str) -> int:
        return sum(getattr(report.latencies, metric).num_samples for report in self.seen)


@pytest.fixture
async def reports(bus: Bus) -> Reports:
    made = Reports()
    await made.listen(bus)
    return made


async def test_a_request_leaves_its_latencies_and_its_lengths(front: Front, peer: Peer, reports: Reports) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    for token in (5, 6, 7):
        await peer.send(request.request_id, [token])
    await peer.send(request.request_id, [], FinishReason.LENGTH)
    await reports.until_finished(1)
    (finished,) = [each for report in reports.seen for each in report.finished]
    assert (finished.arrival_s, finished.num_prompt_tokens, finished.num_output_tokens) == (generation.arrival_s, 3, 3)
    assert [reports.samples(name) for name in ("ttft_ms", "tbt_ms", "tpot_ms", "normalized_latency_ms")] == [1, 2, 1, 1]
    assert sum(report.num_started for report in reports.seen) == 1
    assert {(report.executor_id, report.gateway_id) for report in reports.seen} == {("executor-0", GATEWAY)}
    first_s, last_s = generation.first_token_s, generation.last_token_s
    assert first_s is not None and last_s is not None
    assert sum(report.latencies.ttft_ms.total_ms for report in reports.seen) == pytest.approx(
        (first_s - generation.started_s) * 1e3
    )
    assert sum(report.latencies.tbt_ms.total_ms for report in reports.seen) == pytest.approx((last_s - first_s) * 1e3)


async def test_the_oldest_open_request_is_told(front: Front, peer: Peer, reports: Reports) -> None:
    oldest, younger = await front.submit(), await front.submit()
    await peer.next_request()
    second = await peer.next_request()
    await peer.send(second.request_id, [5], FinishReason.STOP)
    await reports.until_finished(1)
    assert reports.seen[-1].oldest_open_s == oldest.arrival_s
    await front.tracker.close(oldest)
    await reports.until_finished(2)
    assert reports.seen[-1].oldest_open_s is None
    assert reports.seen[-1].latencies.tpot_ms.num_samples == 0
    assert younger.finish_reason is FinishReason.STOP


async def test_a_resumed_request_counts_for_the_executor_that_ends_it(
    front: Front, peer: Peer, bus: Bus, reports: Reports
) -> None:
    await front.submit()
    first = await peer.next_request()
    await peer.send(first.request_id, [5])
    other = await alive(Peer(bus, "executor-1"), front)
    await peer.beat(draining=True)
    await front.until(lambda: len(front.registry.available()) == 1)
    await peer.send(first.request_id, [], FinishReason.ABORT)
    second = await other.next_request()
    await other.send(second.request_id, [6], FinishReason.LENGTH)
    await reports.until_finished(1)
    ended = [report for report in reports.seen if report.finished]
    assert [report.executor_id for report in ended] == ["executor-1"]
    assert ended[0].finished[0].num_output_tokens == 2
    assert sum(report.num_started for report in reports.seen) == 1
    assert reports.samples("ttft_ms") == 1 and reports.samples("tbt_ms") == 1
