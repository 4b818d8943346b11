"""What becomes of requests whose KV does not come, comes late, or comes when nobody wants it any more."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.executor.handover import taking
from services.executor.handover.peers import place_of as place
from services.executor.handover.sim_link import SimLink
from shared.errors import LinkError
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.handover import OfferAnswer, Withdraw
from tests.services.executor.handover.rig import Client, make_request, until
from tests.services.executor.handover.test_desk import Pools, expected, gateway, pools, requests

__all__ = ["expected", "gateway", "pools"]


class HeldLink(SimLink):
    """A sim link whose reads take as long as they are held."""

    def begin(self) -> None:
        self.num_reading = 0
        self.let_go = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, *args: object) -> None:
        self.num_reading += 1
        await self.let_go.wait()
        self.num_reading -= 1
        if self.error is not None:
            raise self.error


@pytest.fixture
async def link(pools: Pools) -> AsyncIterator[HeldLink]:
    desk = pools.strict._pool._desk
    assert desk is not None and isinstance(desk._link, SimLink)
    desk._link.__class__ = HeldLink
    assert isinstance(desk._link, HeldLink)
    desk._link.begin()
    yield desk._link
    desk._link.let_go.set()


async def test_a_read_that_stalls_keeps_its_blocks_until_it_is_over(
    gateway: Client, pools: Pools, link: HeldLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes on where it was; nothing else may be put where the read may still write."""
    monkeypatch.setattr(taking, "TAKE_S", 0.3)
    pool, blocks = pools.strict._replica.pool, pools.strict.info.spec.num_blocks
    await gateway.send("relaxed", [make_request(0)])
    await gateway.until_ended(1)
    assert len(gateway.outputs["online-0"]) == 60 and set(gateway.said_by["online-0"]) == {"relaxed"}
    assert pool.num_free < blocks and link.num_reading >= 1
    link.let_go.set()
    await until(lambda: pool.num_free == blocks)
    assert not gateway.taken
    await pools.until_idle()


@pytest.mark.parametrize("error", [LinkError("cut"), RuntimeError("the handler is closed")])
async def test_a_read_that_fails_is_made_again_over_a_new_connection(
    gateway: Client, pools: Pools, link: HeldLink, error: Exception
) -> None:
    giver = pools.relaxed.info
    link.error = error
    link.let_go.set()
    await gateway.send("relaxed", [make_request(0, max_tokens=2000)])
    await until(lambda: not link.is_connected(place(giver)))
    link.error = None
    await until(lambda: gateway.taken)
    assert link.is_connected(place(giver))
    await gateway.until_ended(1)
    assert len(gateway.outputs["online-0"]) == 2000
    await pools.until_idle()


async def test_withdrawn_while_it_is_read(
    expected: dict[str, list[int]], gateway: Client, pools: Pools, link: HeldLink
) -> None:
    """It may be offered anew; what was withdrawn is answered with no."""
    sent: list[str] = []
    answers: list[OfferAnswer] = []
    desk = pools.relaxed._pool._desk
    assert desk is not None
    ask = desk._giving._ask

    async def noted(message, timeout_s):  # type: ignore[no-untyped-def]
        sent.append(message.handover_id)
        answers.append(await ask(message, timeout_s))
        return answers[-1]

    desk._giving._ask = noted  # type: ignore[method-assign]
    (request,) = [each for each in requests() if each.request_id == "online-0"]
    await gateway.send("relaxed", [request])
    await until(lambda: link.num_reading == 1)
    withdraw = Withdraw(sent[0], place(pools.relaxed.info), place(pools.strict.info))
    answer = await gateway.bus.request(subjects.offer("strict"), withdraw, OfferAnswer)
    assert not answer.is_taken
    link.let_go.set()
    await gateway.until_ended(1)
    assert gateway.outputs["online-0"] == expected["online-0"]
    assert (answers[0].handover_id, answers[0].is_taken, answers[0].why) == (sent[0], False, "withdrawn")
    await pools.until_idle()


async def test_heartbeats_tell_how_long_requests_were_held(gateway: Client, pools: Pools) -> None:
    told: list[Heartbeat] = []

    async def on_heartbeat(heartbeat: Heartbeat) -> None:
        told.append(heartbeat)

    await gateway.bus.subscribe(subjects.heartbeat("relaxed"), Heartbeat, on_heartbeat)
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    await until(lambda: sum(beat.handover_ms.num_samples for beat in told) == len(requests()))
    total_ms = sum(beat.handover_ms.total_ms for beat in told)
    assert told[-1].counters.handover_s == pytest.approx(total_ms / 1e3)
