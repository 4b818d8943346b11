"""The end of a connection, on the event loop that services have."""

import asyncio
import contextlib
import gc
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.machine import free_port
from services.local.stack.processes.process import GRACE_S
from services.local.stack.service_commands import nats_argv
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.connection import CLOSE_S
from shared.bus.lease import RELEASE_S, Lease
from shared.bus.permissions import BusRole
from shared.clock import SystemClock
from shared.errors import BusError
from shared.protocol.requests import AbortRequests
from tests.conftest import nats_server_binary, wait_for_port
from tests.programs import stand_still


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what there is, which is far from the process's own time."""
    assert RELEASE_S + CLOSE_S < GRACE_S
    monkeypatch.setattr("shared.bus.lease.RELEASE_S", RELEASE_S / 10)
    monkeypatch.setattr("shared.bus.connection.CLOSE_S", CLOSE_S / 10)


@contextlib.contextmanager
def running_server(store: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """And its address."""
    port = free_port()
    server = subprocess.Popen([nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(store)])
    try:
        wait_for_port(port, server)
        yield server, f"nats://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_connection_can_be_closed_while_the_server_is_away(tmp_path: Path) -> None:
    """With messages that were not sent yet: uvloop raises where something is written to a transport that is closed."""

    async def run() -> None:
        bus = await Bus.connect(url, "test")
        server.kill()
        server.wait()
        while bus.is_connected:  # noqa: ASYNC110  # the connection says it nowhere else
            await asyncio.sleep(0)
        await bus.publish("slackwater.test", {"kept": "until the server is back"})
        await bus.close()

    with running_server(tmp_path) as (server, url):
        uvloop.run(run())


BACKLOG = ["a" * 500_000] * 60  # more than sockets hold


def test_a_connection_whose_server_stands_still_is_closed_before_its_process_is_killed(tmp_path: Path) -> None:
    """Also with more to be sent than sockets hold. What was waited for is given up without a word of asyncio's."""
    said: list[str] = []

    async def wait_long(_: AbortRequests) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(str(context)))
        bus = await Bus.connect(url, "test")
        lease = Lease(bus, "test", SystemClock())
        await lease.take(lambda holder: None)
        for subject in ("test.in", "test.out"):
            await bus.subscribe(subject, AbortRequests, wait_long)
        await bus.publish("test.in", AbortRequests([]))
        await bus.flush()
        stand_still(server.pid)
        for each in BACKLOG:
            await bus.publish("test", AbortRequests([each]))
        async with asyncio.timeout(GRACE_S):
            await lease.release()
            await bus.close()
        gc.collect()

    with running_server(tmp_path) as (server, url):
        try:
            uvloop.run(run())
        finally:
            server.send_signal(signal.SIGCONT)
    assert said == []


def test_handlers_have_their_answers_while_the_connection_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those to requests, and what a consumer of a stream sends."""
    monkeypatch.setattr("shared.bus.connection.CLOSE_S", CLOSE_S)
    heard: list[object] = []

    async def run() -> None:
        bus = await Bus.connect(url, "test")
        bucket = await bus.bucket("test", AbortRequests)
        begun = asyncio.Event()

        async def ask(message: AbortRequests) -> None:
            async with contextlib.aclosing(bus.read_raw("KV_test", "$KV.test.>", fetch=1)) as read:
                heard.append((await anext(read)).subject)
                begun.set()
                while not bus._client.is_draining:  # noqa: ASYNC110  # the connection says it nowhere else
                    await asyncio.sleep(0)
                await bucket.put("second", message)
                heard.append((await bucket.get("second")).value)
                heard.append([raw.subject async for raw in read])

        await bucket.put("first", AbortRequests([]))
        await bucket.put("other", AbortRequests([]))
        await bus.subscribe("test.in", AbortRequests, ask)
        await bus.publish("test.in", AbortRequests(["1"]))
        await begun.wait()
        await bus.close()

    with running_server(tmp_path) as (_, url):
        uvloop.run(run())
    assert heard == ["$KV.test.first", AbortRequests(["1"]), ["$KV.test.other", "$KV.test.second"]]


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_requests_that_were_taken_are_answered_before_the_connection_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_concurrent: bool
) -> None:
    """With what others answer meanwhile."""
    monkeypatch.setattr("shared.bus.connection.CLOSE_S", CLOSE_S)

    async def tell_again(message: AbortRequests) -> AbortRequests:
        return message

    async def run() -> None:
        bus, other = await Bus.connect(url, "test"), await Bus.connect(url, "other")
        begun = asyncio.Event()

        async def answer(message: AbortRequests) -> AbortRequests:
            begun.set()
            while not bus._client.is_draining:  # noqa: ASYNC110  # the connection says it nowhere else
                await asyncio.sleep(0)
            return await bus.request("test.other", message, AbortRequests)

        await bus.serve("test.in", AbortRequests, answer, is_concurrent=is_concurrent)
        await other.serve("test.other", AbortRequests, tell_again)
        for each in (bus, other):
            await each.flush()
        asked = [AbortRequests([name]) for name in ("1", "2")]
        asking = [asyncio.create_task(other.request("test.in", each, AbortRequests)) for each in asked]
        await begun.wait()
        for each in (other, bus):  # so that both requests are there
            await each.flush()
        await bus.close()
        assert await asyncio.gather(*asking) == asked
        await other.close()

    with running_server(tmp_path) as (_, url):
        uvloop.run(run())


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_a_handler_that_does_not_end_is_cancelled_with_its_connection(tmp_path: Path, is_concurrent: bool) -> None:
    async def run() -> None:
        bus = await Bus.connect(url, "test")
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait_long(_: AbortRequests) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        await bus.serve("test", AbortRequests, wait_long, is_concurrent=is_concurrent)
        await bus.publish("test", AbortRequests([]))
        await begun.wait()
        await bus.close()
        async with asyncio.timeout(GRACE_S):
            await ended.wait()

    with running_server(tmp_path) as (_, url):
        uvloop.run(run())


def test_a_connection_with_tls_waits_for_no_answer_to_its_end(tmp_path: Path) -> None:
    folder, port = BusFolder(tmp_path / "bus"), free_port()
    folder.ensure(("127.0.0.1",))

    async def run() -> None:
        bus = await Bus.connect(folder.address(f"tls://127.0.0.1:{port}", BusRole.OPERATOR), "test")
        stand_still(server.pid)
        async with asyncio.timeout(GRACE_S):
            await bus.close()

    server = subprocess.Popen(nats_argv(tmp_path / "conf", tmp_path / "nats", port, access=folder.server_config()))
    try:
        wait_for_port(port, server)
        uvloop.run(run())
    finally:
        server.kill()
        server.wait()


def test_what_is_left_to_be_sent_to_a_server_that_is_silent_keeps_nobody_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.connection.CLUSTER_PING_S", 0.1)

    async def run() -> None:
        bus = await Bus.connect(BusAddress(f"{one_url},{other_url}"), "test")
        connected_url = bus._client.connected_url
        assert connected_url is not None
        stand_still((one if one_url == connected_url.geturl() else other).pid)
        for each in BACKLOG:
            await bus.publish("test", AbortRequests([each]))
        async with asyncio.timeout(GRACE_S):
            await bus.wait_reconnected(0, None)
            await bus.flush()
        await bus.close()

    with running_server(tmp_path / "one") as (one, one_url), running_server(tmp_path / "other") as (other, other_url):
        uvloop.run(run())


@contextlib.asynccontextmanager
async def hearing_server(said: list[bytes]) -> AsyncIterator[str]:
    """It writes down which commands clients send, and says all that it must; its address."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        about = {"server_id": "S", "version": "2.10.0", "max_payload": 1024**2, "proto": 1, "headers": True}
        writer.write(b"INFO " + json.dumps(about).encode() + b"\r\n")
        while line := await reader.readline():
            said.append(line.split()[0])
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB"):
                await reader.readline()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_flush_that_is_answered_tells_of_all_that_was_published_before() -> None:
    said: list[bytes] = []
    async with hearing_server(said) as url:
        bus = await Bus.connect(url, "test")
        said.clear()
        for _ in range(3):
            await bus.publish("test", AbortRequests([]))
        await bus.flush()
        assert said == [b"PUB", b"PUB", b"PUB", b"PING"]
        await bus.publish("test", AbortRequests([]))
        await bus.close()
        assert said[4:] == [b"PUB", b"PING"]


async def test_a_first_request_may_come_while_the_connection_closes(nats_url: str) -> None:
    bus, other = await Bus.connect(nats_url, "test"), await Bus.connect(nats_url, "other")
    begun = asyncio.Event()

    async def tell_again(message: AbortRequests) -> AbortRequests:
        return message

    async def ask(message: AbortRequests) -> AbortRequests:
        begun.set()
        while not bus._client.is_draining:  # noqa: ASYNC110  # the connection says it nowhere else
            await asyncio.sleep(0)
        return await bus.request("test.other", message, AbortRequests)

    await bus.serve("test.in", AbortRequests, ask)
    await other.serve("test.other", AbortRequests, tell_again)
    for each in (bus, other):
        await each.flush()
    asking = asyncio.create_task(other.request("test.in", AbortRequests(["1"]), AbortRequests))
    await begun.wait()
    await bus.close()
    assert await asking == AbortRequests(["1"])
    await other.close()


async def test_who_subscribes_while_the_connection_closes_is_told_so_in_a_named_error(bus: Bus) -> None:
    bus._client._status = bus._client.DRAINING_SUBS
    try:
        with pytest.raises(BusError, match="subscribe to test: nats: connection draining"):
            await bus.subscribe("test", object, lambda _: asyncio.sleep(0))
    finally:
        bus._client._status = bus._client.CONNECTED
