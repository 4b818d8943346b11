"""What the server in memory alone can be made to do: lose, hold back, forget; in virtual time, the same in each run."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, given, settings
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from shared.bus import Bus
from shared.bus.pulls import BEAT_S, FETCH_WAIT_S, LATE_S, NEXT_API
from shared.errors import BusError, ConflictError, NoResponderError, NotFoundOnBusError
from tests.simulation.loop import VirtualLoop
from tests.simulation.nats import MemoryServer
from tests.simulation.nats.client import MemoryClient
from tests.simulation.nats.jetstream import errors
from tests.simulation.nats.operations import Operation, Player, runs
from tests.simulation.takeover import collected_by

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop(lambda: 0.0)
    with collected_by(loop):
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.forget_tasks()


Scenario = Callable[[MemoryServer, Bus, Bus], Awaitable[None]]


def in_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """With two connections, by the names "one" and "two"."""

    async def begin() -> None:
        server = MemoryServer("memory://faults", random.Random(1), latency_s=0.001)
        server.start()
        one, two = [await Bus.connect(server.url, name) for name in ("one", "two")]
        await scenario(server, one, two)
        await one.close()
        await two.close()

    def test() -> None:
        run(begin())

    test.__name__, test.__doc__ = getattr(scenario, "__name__", ""), scenario.__doc__
    return test


async def heard(bus: Bus, subject: str) -> list[int]:
    seen: list[int] = []

    async def note(number: int) -> None:
        seen.append(number)

    await bus.subscribe(subject, int, note)
    await bus.flush()
    return seen


async def until(holds: Callable[[], bool], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 (in virtual time)
            await asyncio.sleep(0.1)


@in_virtual_time
async def test_a_message_is_lost_in_a_link(server: MemoryServer, one: Bus, two: Bus) -> None:
    seen = await heard(two, "test.>")
    server.link("two").down.loses = lambda subject: subject == "test.b"
    for number, name in enumerate("abc"):
        await one.publish(f"test.{name}", number)
    await asyncio.sleep(1)
    assert seen == [0, 2]


@in_virtual_time
async def test_a_slow_link_keeps_the_order(server: MemoryServer, one: Bus, two: Bus) -> None:
    seen = await heard(two, "test.in")
    way = server.link("two").down
    way.latency_s, way.jitter_s = 2.0, 1.0
    since_s = asyncio.get_running_loop().time()
    for number in range(200):
        await one.publish("test.in", number)
    await until(lambda: bool(seen), 10)
    assert 2.0 <= asyncio.get_running_loop().time() - since_s <= 3.2
    await until(lambda: len(seen) == 200, 10)
    assert seen == list(range(200))


@in_virtual_time
async def test_what_a_short_cut_holds_back_comes_after_it(server: MemoryServer, one: Bus, two: Bus) -> None:
    """The connection stays: TCP sends again."""
    seen = await heard(two, "test.in")

    async def answer(_: object) -> str:
        return "there"

    await two.serve("test.ask", object, answer)
    await two.flush()
    server.link("two").up.cut()  # it hears, and is not heard
    await one.publish("test.in", 1)
    with pytest.raises(NoResponderError):
        await one.request("test.ask", None, str, timeout_s=3)
    assert seen == [1]
    server.link("two").down.cut()
    server.link("two").up.heal()
    await one.publish("test.in", 2)
    await asyncio.sleep(3)
    assert seen == [1]
    server.link("two").heal()
    await until(lambda: seen == [1, 2], 5)
    assert two.reconnects == 0
    assert await one.request("test.ask", None, str) == "there"


@in_virtual_time
async def test_a_long_cut_ends_the_connection_at_both_ends(server: MemoryServer, one: Bus, two: Bus) -> None:
    """Each notices by itself: the client by its pings, and the server later by its own. What the server sends in
    between is lost, as its old connection still listens."""
    seen = await heard(two, "test.in")
    server.link("two").cut()
    await until(lambda: not two.is_connected, 90)
    await one.publish("test.in", 1)
    assert len(server.connections("two")) == 1
    await until(lambda: not server.connections("two"), 500)
    server.link("two").heal()
    await until(lambda: two.is_connected, 5)
    await one.publish("test.in", 2)
    await until(lambda: seen == [2], 5)


@in_virtual_time
async def test_a_client_that_does_not_read_is_cut_off(server: MemoryServer, one: Bus, two: Bus) -> None:
    """Once 64 MiB wait for it."""
    await heard(two, "test.>")
    server.link("two").down.cut()
    for _ in range(63):
        await one._client.publish("test.in", bytes(1024**2))
    await one.flush()
    assert len(server.connections("two")) == 1
    for _ in range(2):
        await one._client.publish("test.in", bytes(1024**2))
    await one.flush()
    assert server.connections("two") == []
    server.link("two").heal()
    await until(lambda: two.reconnects == 1, 60)


@in_virtual_time
async def test_headers_over_the_limit_end_the_client(server: MemoryServer, one: Bus, two: Bus) -> None:
    """nats-py looks only at the data; the server closes the connection, and nats-py does not come back."""
    await one._client.publish("test.in", bytes(server.max_payload), headers={"Name": "value"})
    await until(lambda: one._client.is_closed, 5)
    with pytest.raises(BusError):
        await one.publish("test.in", 1)


@in_virtual_time
async def test_a_dead_process_says_nothing_more(server: MemoryServer, one: Bus, two: Bus) -> None:
    seen = await heard(two, "test.in")
    server.die("two")
    await asyncio.sleep(0.1)
    assert server.connections("two") == []
    with pytest.raises(BusError):
        await two.publish("test.in", 1)
    await one.publish("test.in", 1)
    await asyncio.sleep(1)
    assert seen == []


@in_virtual_time
async def test_without_power_nobody_answers(server: MemoryServer, one: Bus, two: Bus) -> None:
    server.cut_power()
    await asyncio.sleep(30)
    assert one.is_connected  # it has not noticed
    await until(lambda: not one.is_connected and not two.is_connected, 90)
    server.start()
    await until(lambda: one.is_connected and two.is_connected, 10)


@in_virtual_time
async def test_with_power_again_unknown_connections_are_reset(server: MemoryServer, one: Bus, two: Bus) -> None:
    await one.flush()  # its connection's pings begin
    server.cut_power()
    await one.publish("test.in", 1)
    await asyncio.sleep(5)
    assert one.is_connected and two.is_connected
    server.start()
    await until(lambda: one.reconnects == 1 and one.is_connected, 3)
    assert two.reconnects == 0, "it has sent nothing"
    await two.publish("test.in", 1)
    await until(lambda: two.reconnects == 1 and two.is_connected, 3)


@in_virtual_time
async def test_a_stopped_server_refuses(server: MemoryServer, one: Bus, two: Bus) -> None:
    server.stop()
    await until(lambda: not one.is_connected, 1)
    with pytest.raises(BusError, match="no NATS server answers"):
        await Bus.connect(server.url, "three", timeout_s=3)
    server.start()
    await until(lambda: one.is_connected, 2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("interval_s", [0.0, 10.0])
def test_a_power_cut_loses_only_what_was_not_synced(seed: int, interval_s: float) -> None:
    """And of that the newest: what is left is what was there at some moment since the last sync."""

    async def scenario() -> None:
        server = MemoryServer("memory://faults", random.Random(seed), sync_interval_s=interval_s)
        server.start()
        bus = await Bus.connect(server.url, "one")
        await bus._js.add_stream(StreamConfig(name="TEST", subjects=["test.>"], max_msgs_per_subject=1))
        states: list[dict[str, int]] = []
        for number in range(40):
            await bus.store_raw(f"test.{number % 7}", b"", {})
            before = dict(states[-1]) if states else {}
            states.append(before | {f"test.{number % 7}": number + 1})
            await asyncio.sleep(0.4)
        since_sync = 40 if not interval_s else int(40 - 0.4 * 40 % interval_s / 0.4)
        server.cut_power()
        server.start()
        await bus.wait_reconnected(0, 120)
        found = {raw.subject: raw.sequence async for raw in bus.read_raw("TEST", "test.>")}
        assert found in (states[-1:] if not interval_s else _with_torn(states[max(0, since_sync - 2) :]))
        sequence = await bus.store_raw("test.new", b"", {})
        assert sequence == max(found.values()) + 1
        await bus.close()

    run(scenario())


@pytest.mark.parametrize(("is_written_again", "lost"), [(False, {0, 1}), (True, {0})])
def test_what_a_killed_server_had_not_synced_may_be_lost_until_the_next_one_syncs(
    is_written_again: bool, lost: set[int]
) -> None:
    """The system has it, and nobody else."""

    async def num_lost(seed: int) -> int:
        server = MemoryServer("memory://faults", random.Random(seed), sync_interval_s=10.0)
        server.start()
        bus = await Bus.connect(server.url, "one")
        await bus._js.add_stream(StreamConfig(name="TEST", subjects=["test.>"]))
        jetstream, written_s = server.jetstream, asyncio.get_running_loop().time()
        assert jetstream.not_synced_since_s is None
        await bus.store_raw("test.a", b"", {})
        server.kill()
        server.start()
        await bus.wait_reconnected(0, 120)
        await asyncio.sleep(15.0)
        assert jetstream.not_synced_since_s == pytest.approx(written_s, abs=0.1)
        if is_written_again:
            await bus.store_raw("test.b", b"", {})
            await asyncio.sleep(15.0)
            assert jetstream.not_synced_since_s is None
        server.cut_power()
        server.start()
        await bus.wait_reconnected(1, 120)
        assert jetstream.not_synced_since_s is None
        left = [raw async for raw in bus.read_raw("TEST", "test.>")]
        await bus.close()
        return 1 + is_written_again - len(left)

    assert {run(num_lost(seed)) for seed in range(8)} == lost


def _with_torn(states: list[dict[str, int]]) -> list[dict[str, int]]:
    """Also those where a message was removed for the next one of its subject, and that is lost."""
    torn = []
    for before, after in itertools.pairwise(states):
        replaced = [name for name in after if name in before and before[name] != after[name]]
        torn.append({name: number for name, number in before.items() if name not in replaced})
    return states + torn


@in_virtual_time
async def test_who_follows_reads_again_what_is_left_of_a_store(server: MemoryServer, one: Bus, two: Bus) -> None:
    await one._js.add_stream(StreamConfig(name="TEST", subjects=["test.>"]))
    for number in range(20):
        await one.store_raw("test.a", str(number).encode(), {})
    seen: list[int] = []

    async def follow() -> None:
        async for raw in two.follow_raw("TEST", "test.>"):
            if raw is not None:
                seen.append(raw.sequence)

    following = asyncio.create_task(follow())
    await until(lambda: len(seen) == 20, 5)
    server.cut_power()
    server.start()
    num_left = len(server.jetstream.streams["TEST"].store.messages)
    assert num_left < 20
    await until(lambda: len(seen) == 20 + num_left, 120)
    following.cancel()
    assert seen[20:] == list(range(1, num_left + 1))


@in_virtual_time
async def test_nothing_is_left_of_readers_that_are_gone(server: MemoryServer, one: Bus, two: Bus) -> None:
    await one._js.add_stream(StreamConfig(name="TEST", subjects=["test.>"], max_msgs=50))
    assert [raw async for raw in one.read_raw("TEST", "test.>")] == []
    for _ in range(5):  # of readers that were killed
        await one._js.add_consumer("TEST", ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30.0))
    stream = server.jetstream.streams["TEST"]
    assert len(stream.consumers) == 5
    for number in range(3000):
        await one.store_raw(f"test.{number}", b"", {})
    assert len(stream.store.messages) == len(stream.store.subjects) == 50
    assert all(len(consumer._ahead) <= 200 for consumer in stream.consumers.values())
    await asyncio.sleep(70)
    assert stream.consumers == {} and not stream._following


@settings(max_examples=6, phases=[Phase.generate], derandomize=True)
@given(operations=runs)
def test_the_same_seed_is_the_same_run(operations: list[Operation]) -> None:
    async def play() -> tuple[list[Any], float, list[str]]:
        server = MemoryServer("memory://faults", random.Random(7), latency_s=0.001)
        way = server.link("").up
        way.jitter_s = 0.01
        server.start()
        client = MemoryClient()
        await client.connect(server.url)
        answers = await Player(client).play(operations)
        inboxes = [client.new_inbox()]
        await client.close()
        return answers, asyncio.get_running_loop().time(), inboxes

    assert run(play()) == run(play())


@in_virtual_time
async def test_who_follows_an_idle_bucket_asks_seldom_and_hears_at_once(
    server: MemoryServer, one: Bus, two: Bus
) -> None:
    bucket, heard_keys, sent = await one.bucket("test", int), list[str](), list[str]()

    def note(subject: str) -> bool:
        sent.append(subject)
        return False

    following = asyncio.create_task(bucket.follow(lambda key, value: heard_keys.append(key)))
    await bucket.put("a", 1)
    await until(lambda: heard_keys == ["a"], 10)
    server.link("one").up.loses = note
    await asyncio.sleep(1000)
    assert len(sent) <= 1000 / FETCH_WAIT_S + 1
    await bucket.put("b", 2)
    await until(lambda: heard_keys == ["a", "b"], 1)
    following.cancel()


@in_virtual_time
async def test_a_follower_whose_question_was_lost_asks_again(server: MemoryServer, one: Bus, two: Bus) -> None:
    """Its connection is whole, so that only the server's silence tells."""
    bucket, heard_keys = await two.bucket("test", int), list[str]()
    following = asyncio.create_task(bucket.follow(lambda key, value: heard_keys.append(key)))
    await bucket.put("a", 1)
    await until(lambda: heard_keys == ["a"], 10)
    server.link("two").up.loses = lambda subject: subject.startswith(NEXT_API)
    await asyncio.sleep(2 * FETCH_WAIT_S)
    server.link("two").up.loses = None
    await (await one.bucket("test", int)).put("b", 2)
    await until(lambda: heard_keys == ["a", "b"], 2 * (BEAT_S + LATE_S))
    following.cancel()


@in_virtual_time
async def test_an_error_that_is_answered_keeps_nothing(server: MemoryServer, one: Bus, two: Bus) -> None:
    bucket = await one.bucket("test", int)
    for _ in range(3):
        with pytest.raises(NotFoundOnBusError):
            await bucket.get("a")
        with pytest.raises(ConflictError):
            await bucket.update("a", 1, 7)
    assert errors.NO_MESSAGE.__traceback__ is None
