"""Live messages: who gets them, and what becomes of them while the server is away."""

import asyncio
from functools import partial

import pytest

from shared.bus import Bus
from shared.errors import BusError, NobodyListensError, TooLargeForBusError
from shared.protocol.requests import AbortRequests
from tests.shared.bus.servers import MAX_PAYLOAD, Server, until

Seen = asyncio.Queue[AbortRequests]


async def listening(bus: Bus, subject: str) -> Seen:
    seen: Seen = asyncio.Queue()
    await bus.subscribe(subject, AbortRequests, seen.put)
    await bus.flush()
    return seen


async def test_of_a_queue_group_one_answers(bus: Bus, nats_url: str) -> None:
    answered = {"one": 0, "two": 0}
    others = [await Bus.connect(nats_url, name) for name in answered]
    for name, other in zip(answered, others, strict=True):

        async def answer(_: object, name: str = name) -> str:
            answered[name] += 1
            return name

        await other.serve("test.shared", object, answer, queue="group")
        await other.flush()
    for _ in range(40):
        await bus.request("test.shared", None, str)
    assert sum(answered.values()) == 40 and all(answered.values())
    await others[0].close()
    for _ in range(5):
        assert await bus.request("test.shared", None, str) == "two"
    await others[1].close()
    with pytest.raises(NobodyListensError):
        await bus.request("test.shared", None, str)


async def test_who_listen_to_the_same_have_a_message_that_is_sent_and_decoded_once(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[AbortRequests]] = [[], [], []]
    last = asyncio.Event()

    async def fail(message: AbortRequests) -> None:
        seen[1].append(message)
        raise ValueError("of one alone")

    async def keep(message: AbortRequests) -> None:
        seen[2].append(message)
        last.set()

    first = await bus.subscribe("test.shared", AbortRequests, partial(_append, seen[0]))
    await bus.subscribe("test.shared", AbortRequests, fail)
    third = await bus.subscribe("test.shared", AbortRequests, keep)
    num_before = bus._client.stats["in_msgs"]
    await bus.publish("test.shared", AbortRequests(["1"]))
    await bus.flush()
    await last.wait()
    assert bus._client.stats["in_msgs"] == num_before + 1
    assert [len(each) for each in seen] == [1, 1, 1] and seen[0][0] is seen[1][0] is seen[2][0]
    assert [record.getMessage() for record in caplog.records] == ["a message was not handled"]
    await first.stop()
    last.clear()
    await bus.publish("test.shared", AbortRequests(["2"]))
    await bus.flush()
    await last.wait()
    assert [len(each) for each in seen] == [1, 2, 2]
    await third.stop()
    await third.stop()


async def test_a_subject_that_nobody_listens_to_any_more_is_heard_again(bus: Bus) -> None:
    for number in range(2):
        seen: list[AbortRequests] = []
        subscription = await bus.subscribe("test.again", AbortRequests, partial(_append, seen))
        await bus.publish("test.again", AbortRequests([str(number)]))
        await bus.flush()
        await subscription.caught_up()
        assert seen == [AbortRequests([str(number)])]
        await subscription.stop()
        await bus.flush()
        with pytest.raises(NobodyListensError):
            await bus.request("test.again", AbortRequests([]), object)


async def _append(seen: list[AbortRequests], message: AbortRequests) -> None:
    seen.append(message)


async def test_nobody_listens_is_told_at_once(bus: Bus) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NobodyListensError):
            await bus.request("test.nobody", None, str, timeout_s=60)


async def test_a_message_over_the_limit_is_not_sent_and_those_behind_it_are(bus: Bus) -> None:
    seen = await listening(bus, "test.in")
    with pytest.raises(TooLargeForBusError):
        await bus.publish("test.in", AbortRequests(["x" * MAX_PAYLOAD]))
    largest = AbortRequests(["x" * (MAX_PAYLOAD - 100)])
    await bus.publish("test.in", largest)
    assert await asyncio.wait_for(seen.get(), 5) == largest


async def test_a_subject_that_no_server_takes_is_not_sent_and_what_is_behind_it_is(bus: Bus) -> None:
    seen = await listening(bus, "test.in")
    with pytest.raises(BusError):
        await bus.publish("test." + "x" * 5000, AbortRequests([]))
    with pytest.raises(BusError):
        await bus.request("test." + "x" * 5000, AbortRequests([]), AbortRequests)
    await bus.publish("test.in", AbortRequests(["a"]))
    assert await asyncio.wait_for(seen.get(), 5) == AbortRequests(["a"])
    assert bus.reconnects == 0


async def test_of_requests_that_could_not_be_sent_nothing_stays(bus: Bus) -> None:
    """Who may not send asks again and again."""
    bus.fence(lambda subject: subject != "test.fenced")
    for subject, message in (("test.large", "x" * MAX_PAYLOAD), ("test." + "a" * 4096, None), ("test.fenced", None)):
        for _ in range(10):
            with pytest.raises(BusError):
                await bus.request(subject, message, str)
    assert not bus._client._resp_map


async def test_an_error_of_any_length_is_told(bus: Bus) -> None:
    async def fail(_: object) -> None:
        raise BusError("x" * 2 * MAX_PAYLOAD)

    await bus.serve("test.fails", object, fail)
    with pytest.raises(BusError, match="xxx"):
        await bus.request("test.fails", None, str)


async def test_wildcards_are_for_whole_tokens(bus: Bus) -> None:
    one, rest, exact = [await listening(bus, subject) for subject in ("test.*.a", "test.x.>", "test.x.a")]
    for subject in ("test.x.a", "test.y.a", "test.x", "test.x.b.c", "testing.x.a"):
        await bus.publish(subject, AbortRequests([subject]))
    await bus.flush()
    await asyncio.sleep(0.05)

    def told(seen: Seen) -> list[str]:
        return [seen.get_nowait().request_ids[0] for _ in range(seen.qsize())]

    assert told(one) == ["test.x.a", "test.y.a"]
    assert told(rest) == ["test.x.a", "test.x.b.c"]
    assert told(exact) == ["test.x.a"]


async def test_what_is_published_while_the_server_is_away_is_sent_when_it_is_back(server: Server, bus: Bus) -> None:
    seen = await listening(bus, "test.in")
    server.kill()
    await until(lambda: not bus.is_connected)
    for number in range(50):
        await bus.publish("test.in", AbortRequests([str(number)]))
    server.start()
    async with asyncio.timeout(60):
        assert [(await seen.get()).request_ids[0] for _ in range(50)] == [str(number) for number in range(50)]
    await bus.wait_reconnected(0, 60)
    assert bus.reconnects == 1


async def test_beyond_the_buffer_a_message_is_refused(server: Server, bus: Bus) -> None:
    server.kill()
    await until(lambda: not bus.is_connected)
    large = AbortRequests(["x" * 900_000])
    num_sent = 0
    with pytest.raises(BusError, match="outbound buffer limit exceeded"):
        for _ in range(100):
            await bus.publish("test.in", large)
            num_sent += 1
    assert 70 <= num_sent <= 74  # 64 MiB
    server.start()
    await until(lambda: bus.is_connected)


async def test_a_request_that_is_under_way_when_the_server_dies_ends_in_time(server: Server, bus: Bus) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def never(_: object) -> None:
        asked.set()
        await over.wait()

    await bus.serve("test.slow", object, never)
    asking = asyncio.create_task(bus.request("test.slow", None, object, timeout_s=1.5))
    await asyncio.wait_for(asked.wait(), 5)
    server.kill()
    with pytest.raises(BusError):
        await asyncio.wait_for(asking, 10)
    server.start()
    await until(lambda: bus.is_connected)
    over.set()


async def test_who_reconnects_listens_as_before(server: Server, bus: Bus, nats_url: str) -> None:
    other = await Bus.connect(nats_url, "other")
    seen = await listening(other, "test.in")
    for generation in range(2):
        before = bus.reconnects, other.reconnects
        server.kill()
        server.start()
        await bus.wait_reconnected(before[0], 20)
        await other.wait_reconnected(before[1], 20)
        await bus.publish("test.in", AbortRequests([str(generation)]))
        assert (await asyncio.wait_for(seen.get(), 5)).request_ids == [str(generation)]
    await other.close()
