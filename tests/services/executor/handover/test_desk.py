"""Requests that move between executors of two pools, on a real bus, with the sim engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.executor.handover import pool
from services.executor.handover.giving import Giving
from services.executor.handover.link import BlockPairs, KVLink
from services.executor.handover.links import make_link
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.errors import BusError, ConfigError, NobodyListensError
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat, SetDraining
from shared.protocol.handover import (
    AskKVAddress,
    KVAddress,
    Offer,
    OfferAnswer,
    OfferMessage,
    Place,
    SetRole,
    Withdraw,
)
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.replica.engine import Engine
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.handover.rig import Client, client, make_request, running, sim_settings, until

__all__ = ["client"]

OOCO = Strategy.of("ooco")


@pytest.fixture
async def gateway(nats_url: str) -> AsyncIterator[Client]:
    async with client(nats_url) as made:
        await made.bus.ensure_streams()
        yield made


@pytest.fixture
async def expected(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> AsyncIterator[dict[str, list[int]]]:
    """What one mixed executor makes of the requests."""
    async with running(nats_url, sim_settings(model_folder, "alone", "mixed"), tokenizer) as alone:
        await gateway.send("alone", requests())
        await gateway.until_ended(len(requests()))
        assert alone._pool.acting is Role.MIXED
        assert not gateway.taken
    outputs = {**gateway.outputs}
    for each in (gateway.outputs, gateway.ended, gateway.said_by):
        each.clear()
    yield outputs


class Pools:
    """An executor of each pool, which have met."""

    def __init__(self, relaxed: ExecutorService, strict: ExecutorService) -> None:
        self.relaxed = relaxed
        self.strict = strict

    @property
    def both(self) -> list[ExecutorService]:
        return [self.relaxed, self.strict]

    async def until_idle(self) -> None:
        """And nothing is held or reserved any more."""
        for each in self.both:
            await until_idle(each)


async def until_idle(executor: ExecutorService) -> None:
    """And nothing is held or reserved there any more."""
    replica = executor._replica
    await until(lambda: not replica.has_work and replica.pool.num_free == executor.info.spec.num_blocks)
    replica.pool.check_integrity()
    replica.table.check_integrity()


@pytest.fixture
async def pools(
    request: pytest.FixtureRequest, nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> AsyncIterator[Pools]:
    others = getattr(request, "param", {})
    async with AsyncExitStack() as stack:
        made = []
        for executor_id, role in (("relaxed", "relaxed"), ("strict", "strict")):
            settings = sim_settings(model_folder, executor_id, role, strategy=OOCO, **others.get(role, {}))
            made.append(await stack.enter_async_context(running(nats_url, settings, tokenizer)))
        both = Pools(*made)
        await until(lambda: both.relaxed._replica.handovers.pushes and both.strict._pool.acting is Role.STRICT)
        yield both


def requests(kind: Kind = Kind.ONLINE, max_tokens: int = 60) -> list[GenerateRequest]:
    return [make_request(number, kind, max_tokens) for number in range(12)]


@pytest.mark.parametrize(
    "pools",
    [{}, {"relaxed": {"pipeline_depth": 2}, "strict": {"pipeline_depth": 2}}],
    indirect=True,
    ids=["a step in flight", "two"],
)
async def test_online_requests_go_to_the_strict_one_and_nobody_notices(
    expected: dict[str, list[int]], gateway: Client, pools: Pools
) -> None:
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected
    assert set(gateway.ended.values()) == {FinishReason.LENGTH}
    assert {taken.request_id for taken in gateway.taken} == set(expected)
    assert all(said[0] == "relaxed" and said[-1] == "strict" for said in gateway.said_by.values())
    await pools.until_idle()
    assert pools.relaxed._replica.totals.handed_over == pools.strict._replica.totals.taken_over == len(expected)
    assert pools.strict._replica.totals.prompt_tokens == 0
    await until(lambda: gateway.beats["relaxed"].counters.handed_over == len(expected))


async def test_a_strict_one_asks_for_offline_requests(gateway: Client, pools: Pools) -> None:
    key = pools.strict.info.profile_key
    models = await gateway.bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    budgets = await gateway.bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    coefficients = LinearCoefficients((1.0, 0.1, 0.0, 0.001, 0.0, 0.0, 0.1, 0.0))
    await models.put(key, LatencyModelRecord(key, coefficients, 9, 0.0, 0.0))
    await budgets.put(key, BudgetRecord(key, 10.0, "fixed"))
    await gateway.send("relaxed", requests(Kind.OFFLINE, max_tokens=400))
    await gateway.until_ended(len(requests()))
    assert set(gateway.ended.values()) == {FinishReason.LENGTH}
    assert gateway.taken and all(taken.taker.executor_id == "strict" for taken in gateway.taken)
    await pools.until_idle()


async def test_without_the_other_pool_requests_stay(
    expected: dict[str, list[int]], gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    async with running(nats_url, sim_settings(model_folder, "relaxed", "relaxed"), tokenizer) as relaxed:
        async with running(nats_url, sim_settings(model_folder, "strict", "strict"), tokenizer) as strict:
            await until(lambda: relaxed._replica.handovers.pushes and strict._pool.acting is Role.STRICT)
        await until(lambda: relaxed._pool.acting is Role.MIXED)
        assert not relaxed._replica.handovers.pushes
        await gateway.send("relaxed", requests())
        await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected and not gateway.taken


async def test_roles_change_while_requests_run(gateway: Client, pools: Pools) -> None:
    await gateway.send("relaxed", requests(max_tokens=300))
    await until(lambda: len(gateway.taken) == len(requests()))
    swapped = {"strict": Role.RELAXED, "relaxed": Role.STRICT}
    for executor_id, role in swapped.items():
        beat = await gateway.bus.request(subjects.role(executor_id), SetRole(role), Heartbeat)
        assert beat.info.role is role
    await gateway.until_ended(len(requests()))
    assert len({(taken.request_id, taken.taker.executor_id) for taken in gateway.taken}) == 2 * len(requests())
    registered = await gateway.bus.bucket(subjects.EXECUTORS_BUCKET, type(pools.strict.info))
    entry = await registered.get("strict")
    assert (entry.value.role, entry.value.epoch) == (Role.RELAXED, pools.strict.info.epoch)
    await pools.until_idle()


async def test_a_role_that_is_given_before_it_has_started_is_not_heard(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make another link and another desk, and two would answer each offer."""
    num_made = 0

    async def make_late(engine: Engine, place: Place, settings: ExecutorSettings) -> KVLink:
        nonlocal num_made
        num_made += 1
        await asyncio.sleep(0.5)  # so that it would be heard
        return await make_link(engine, place, settings)

    async def give_role() -> Heartbeat:
        while True:
            with contextlib.suppress(NobodyListensError):
                return await gateway.bus.request(subjects.role("relaxed"), SetRole(Role.STRICT), Heartbeat)

    monkeypatch.setattr(pool, "make_link", make_late)
    giving = asyncio.create_task(give_role())
    async with running(nats_url, sim_settings(model_folder, "relaxed", "relaxed", strategy=OOCO), tokenizer):
        assert (await giving).info.role is Role.STRICT
        assert num_made == 1


async def test_a_mixed_one_hears_nobody_until_it_is_of_a_pool(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    async with running(nats_url, sim_settings(model_folder, "mixed", "mixed"), tokenizer) as service:
        assert service.info.kv_link == "sim" and service._pool._desk is None
        assert service._loop._before_packing is None
        await gateway.bus.request(subjects.role("mixed"), SetRole(Role.STRICT), Heartbeat)
        desk = service._pool._desk
        assert desk is not None and desk._heartbeats is not None
        await gateway.bus.request(subjects.role("mixed"), SetRole(Role.MIXED), Heartbeat)
        await until(lambda: desk._heartbeats is None and service._loop._before_packing is None)


async def test_paused_kv_does_not_move(
    gateway: Client, nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    bidirectional = Strategy.of("hygen", kv_sharing="bidirectional")
    settings = sim_settings(model_folder, "executor-0", "strict", strategy=bidirectional)
    with pytest.raises(ConfigError, match="role strict: with kv_sharing bidirectional KV is paused"):
        async with running(nats_url, settings, tokenizer):
            pass
    settings = sim_settings(model_folder, "executor-0", "mixed", strategy=bidirectional)
    async with running(nats_url, settings, tokenizer):
        with pytest.raises(BusError, match="role strict: with kv_sharing bidirectional KV is paused"):
            await gateway.bus.request(subjects.role("executor-0"), SetRole(Role.STRICT), Heartbeat)


@pytest.mark.parametrize("pools", [{"strict": {"kv_blocks": 16}}], indirect=True)
async def test_who_finds_no_room_goes_on_where_it_is(
    expected: dict[str, list[int]], gateway: Client, pools: Pools
) -> None:
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected
    assert 0 < len(gateway.taken) < len(requests())
    await pools.until_idle()


async def test_who_drains_takes_nothing(expected: dict[str, list[int]], gateway: Client, pools: Pools) -> None:
    await gateway.bus.request(subjects.drain("strict"), SetDraining(True), Heartbeat)
    await until(lambda: pools.relaxed._pool.acting is Role.MIXED)
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected and not gateway.taken


async def test_an_abort_while_it_moves_takes_effect_in_the_end(gateway: Client, pools: Pools) -> None:
    await gateway.send("relaxed", requests(max_tokens=2000))
    aborted = AbortRequests([each.request_id for each in requests()])
    await until(lambda: gateway.taken)
    while any(each._replica.has_work for each in pools.both):
        for executor_id in ("relaxed", "strict"):
            await gateway.bus.publish(subjects.inbox(executor_id), aborted)
        await asyncio.sleep(0.01)
    await pools.until_idle()
    assert set(gateway.ended.values()) <= {FinishReason.ABORT}


class FakeTaker:
    """A strict executor that answers as it is told to."""

    def __init__(self, pools: Pools, gateway: Client) -> None:
        self.place = Place("fake", "epoch")
        self.offers: asyncio.Queue[Offer] = asyncio.Queue()
        self.withdrawals = 0
        self.answers: dict[str, bool] = {}  # to withdrawals, by handover id
        self.is_draining = False
        self.has_ended = asyncio.Event()
        self._gateway = gateway
        self._info = pools.strict.info
        self._layout = pools.strict._pool._desk._link.address  # type: ignore[union-attr]

    async def begin(self) -> None:
        bus = self._gateway.bus
        await bus.serve(subjects.offer("fake"), OfferMessage, self._on_offer, is_concurrent=True)
        await bus.serve(subjects.kv_address("fake"), AskKVAddress, self._on_ask)
        await bus.flush()

    async def beat(self) -> None:
        from msgspec.structs import replace

        info = replace(self._info, executor_id="fake", epoch="epoch", role=Role.STRICT)
        template = self._gateway.beats["strict"]
        await self._gateway.bus.publish(
            subjects.heartbeat("fake"), replace(template, info=info, draining=self.is_draining)
        )

    async def _on_ask(self, ask: AskKVAddress) -> KVAddress:
        return KVAddress(self.place, "sim", self._layout.layout, b"")

    async def _on_offer(self, message: Offer | Withdraw) -> OfferAnswer:
        if isinstance(message, Offer):
            self.offers.put_nowait(message)
            await self.has_ended.wait()
        self.withdrawals += 1
        if message.handover_id not in self.answers:
            await self.has_ended.wait()
        return OfferAnswer(message.handover_id, self.answers.get(message.handover_id, False))


@pytest.fixture
async def fake(gateway: Client, pools: Pools) -> AsyncIterator[FakeTaker]:
    """Alone in its pool."""
    await until(lambda: "strict" in gateway.beats)
    made = FakeTaker(pools, gateway)
    await gateway.bus.request(subjects.drain("strict"), SetDraining(True), Heartbeat)
    await made.begin()
    yield made
    made.has_ended.set()


async def beats(fake: FakeTaker) -> None:
    while True:
        await fake.beat()
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_an_offer_without_an_answer_is_asked_about_until_it_is_known(
    gateway: Client, pools: Pools, fake: FakeTaker, is_taken: bool
) -> None:
    beating = asyncio.create_task(beats(fake))
    await until(lambda: pools.relaxed._replica.handovers.pushes)
    await gateway.send("relaxed", [make_request(0)])
    offer = await fake.offers.get()
    assert offer.carried.request.request_id == "online-0"
    await until(lambda: fake.withdrawals >= 2)
    held = gateway.outputs["online-0"]
    assert len(held) < 60 and "online-0" not in gateway.ended
    fake.is_draining = True  # so that it is offered nothing more
    await until(lambda: not pools.relaxed._replica.handovers.pushes)
    fake.answers[offer.handover_id] = is_taken
    if is_taken:
        await until(lambda: not pools.relaxed._replica.has_work)
        assert pools.relaxed._replica.totals.handed_over == 1
    else:
        await gateway.until_ended(1)
        assert len(gateway.outputs["online-0"]) == 60
    beating.cancel()


@pytest.mark.parametrize("is_sent", [True, False])
async def test_an_offer_that_fails_as_nobody_expects_is_asked_about_too(
    expected: dict[str, list[int]],
    gateway: Client,
    pools: Pools,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_sent: bool,
) -> None:
    ask = Giving._ask

    async def fail(self: Giving, message: OfferMessage, timeout_s: float) -> OfferAnswer:
        answer = await ask(self, message, timeout_s) if is_sent or isinstance(message, Withdraw) else None
        if answer is None or isinstance(message, Offer):
            raise RuntimeError("the handler is closed")
        return answer

    monkeypatch.setattr(Giving, "_ask", fail)
    await gateway.send("relaxed", requests())
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected
    told = [record for record in caplog.records if record.message == "an offer is taken back"]
    assert told and all(record.exc_info for record in told)
    assert bool(pools.relaxed._replica.totals.handed_over) == is_sent
    await pools.until_idle()


async def test_of_a_taker_that_is_gone_nothing_is_awaited(gateway: Client, pools: Pools, fake: FakeTaker) -> None:
    await fake.beat()
    await until(lambda: pools.relaxed._replica.handovers.pushes)
    await gateway.send("relaxed", [make_request(0)])
    await fake.offers.get()
    await gateway.until_ended(1)
    assert len(gateway.outputs["online-0"]) == 60
    assert pools.relaxed._replica.totals.handed_over == 0


async def test_what_was_withdrawn_is_never_taken(gateway: Client, pools: Pools) -> None:
    """The news of it may come before the offer does."""
    giver, taker = Place("relaxed", pools.relaxed.info.epoch), Place("strict", pools.strict.info.epoch)
    pools.relaxed._replica.handovers.pushes = ()
    carried = []
    collect = pools.relaxed._replica.handovers.collect
    pools.relaxed._replica.handovers.collect = lambda: carried.extend(collect()) or []  # type: ignore[method-assign]
    await gateway.send("relaxed", [make_request(0, max_tokens=2000)])
    await until(lambda: "online-0" in gateway.outputs)
    pools.relaxed._replica.handovers.ask(["online-0"])
    await until(lambda: carried)
    withdraw, offer = Withdraw("one", giver, taker), Offer("one", giver, taker, carried[0])
    for message in (withdraw, offer, withdraw):
        answer = await gateway.bus.request(subjects.offer("strict"), message, OfferAnswer)
        assert not answer.is_taken
    other = Offer("two", giver, Place("strict", "before"), carried[0])
    assert not (await gateway.bus.request(subjects.offer("strict"), other, OfferAnswer)).is_taken
    assert not pools.strict._replica.has_work
    offer = Offer("three", giver, taker, carried[0])
    assert (await gateway.bus.request(subjects.offer("strict"), offer, OfferAnswer)).is_taken
    withdraw = Withdraw("three", giver, taker)
    assert (await gateway.bus.request(subjects.offer("strict"), withdraw, OfferAnswer)).is_taken
    assert (
        "here already"
        in (
            await gateway.bus.request(subjects.offer("strict"), Offer("four", giver, taker, carried[0]), OfferAnswer)
        ).why
    )
    pools.relaxed._replica.handovers.gave("online-0")
    await until(lambda: len(gateway.outputs["online-0"]) > 10)
    await gateway.bus.publish(subjects.inbox("strict"), AbortRequests(["online-0"]))
    await pools.until_idle()


async def test_at_the_end_what_is_on_its_way_arrives(gateway: Client, pools: Pools) -> None:
    await gateway.send("relaxed", requests(max_tokens=300))
    await until(lambda: gateway.taken)
    await pools.relaxed._pool.settle()
    assert not pools.relaxed._pool._desk._giving.num_on_their_way  # type: ignore[union-attr]
    await gateway.until_ended(len(requests()))
    assert set(gateway.ended.values()) == {FinishReason.LENGTH}


async def test_who_ends_waits_for_no_taker_that_stands_still(
    gateway: Client, pools: Pools, fake: FakeTaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating = asyncio.create_task(beats(fake))
    await until(lambda: pools.relaxed._replica.handovers.pushes)
    await gateway.send("relaxed", [make_request(0)])
    await until(lambda: fake.withdrawals)
    ending = pools.relaxed._pool._desk
    assert ending is not None
    monkeypatch.setattr("services.executor.handover.desk.SETTLE_S", 0.1)
    await ending.settle()
    assert ending._giving.num_on_their_way
    monkeypatch.setattr("services.executor.handover.desk.SETTLE_S", 1e6)
    await ending.close()
    assert not ending._giving.num_on_their_way
    beating.cancel()


async def test_a_taker_that_stops_answers_what_it_was_offered(
    expected: dict[str, list[int]], gateway: Client, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = pools.strict._pool._desk
    assert desk is not None
    reads, may_read, read = asyncio.Event(), asyncio.Event(), desk._link.read

    async def read_when_it_may(place: Place, pairs: BlockPairs) -> None:
        reads.set()
        await may_read.wait()
        await read(place, pairs)

    monkeypatch.setattr(desk._link, "read", read_when_it_may)
    await gateway.send("relaxed", requests())
    await reads.wait()
    settling = asyncio.create_task(pools.strict._pool.settle())
    await asyncio.sleep(0)
    assert not desk._taking.answered.is_set()
    may_read.set()
    await settling
    assert desk._taking.answered.is_set()
    await gateway.until_ended(len(requests()))
    assert gateway.outputs == expected
    await pools.until_idle()


async def test_who_has_nothing_to_do_is_not_woken(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the strict one, until somebody runs offline requests, for which it asks."""
    await pools.until_idle()
    looks, woken = (dict.fromkeys(("relaxed", "strict"), 0) for _ in range(2))

    def counted(name: str, executor: ExecutorService) -> None:
        desk = executor._pool._desk
        assert desk is not None
        wake, look = executor._loop.wake, desk.peers.fall_silent

        def count() -> None:
            woken[name] += 1
            wake()

        def count_look() -> list[Place]:
            looks[name] += 1
            return look()

        monkeypatch.setattr(executor._loop, "wake", count)
        monkeypatch.setattr(desk.peers, "fall_silent", count_look)

    counted("relaxed", pools.relaxed)
    counted("strict", pools.strict)
    await until(lambda: min(looks.values()) >= 3)
    assert woken == {"relaxed": 0, "strict": 0}
    assert pools.strict._pool._desk is not None
    monkeypatch.setattr(pools.strict._pool._desk._pulling, "may_ask", lambda own: True)
    await until(lambda: woken["strict"] >= 3)
