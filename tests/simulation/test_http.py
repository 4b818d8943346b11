"""What clients of a simulated gateway see of its answers, its end and their own leaving."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from services.gateway.settings import GatewaySettings
from tests.simulation.http import Network, VirtualHttpServer
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import Process
from tests.simulation.run import in_virtual_time
from tests.simulation.transport import VirtualTransport

Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The body in pieces, a second apart."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (message := await receive())["type"] == "http.request":
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        if not message["more_body"]:
            break
        await asyncio.sleep(1.0)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _listening(app: Application) -> tuple[httpx.AsyncClient, Process, VirtualHttpServer]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network, process = Network(), Process(loop, "gateway-0", 1, lambda _, status: None)
    server = VirtualHttpServer(network, process, app, GatewaySettings(model_path=""))
    await server.start()
    client = httpx.AsyncClient(transport=VirtualTransport(network, "gateway-0"), base_url="http://gateway-0")
    return client, process, server


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    in_virtual_time("http", main)


def test_a_body_is_answered() -> None:
    async def main() -> None:
        client, _, server = await _listening(_echo)
        assert (await client.post("/", content=b"hello")).content == b"hello"
        await asyncio.sleep(0.1)  # of virtual time: the application returns after its last word
        assert server.num_connections == server.num_answering == 0

    _run(main)


def test_a_killed_server_breaks_its_answers_off() -> None:
    async def main() -> None:
        async def never(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(1e6)

        client, process, _ = await _listening(never)
        asyncio.get_running_loop().call_later(5.0, process.kill)
        with pytest.raises(httpx.ReadError):
            await client.get("/", timeout=60.0)
        assert asyncio.get_running_loop().time() == 5.0
        with pytest.raises(httpx.ConnectError):
            await client.get("/")

    _run(main)


def test_a_stopped_server_says_nothing_until_it_goes_on() -> None:
    async def main() -> None:
        client, process, _ = await _listening(_echo)
        process.pause()
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=10.0)
        asyncio.get_running_loop().call_later(5.0, process.resume)
        assert (await client.get("/", timeout=10.0)).status_code == 200

    _run(main)


def test_a_server_learns_that_its_client_has_left() -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            while (await receive())["type"] != "http.disconnect":
                continue
            left.set()

        client, _, _ = await _listening(waits)
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=1.0)
        await asyncio.wait_for(left.wait(), 1.0)

    _run(main)


def test_open_answers_are_ended_when_a_server_drains() -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            await may_end.wait()
            await _echo(scope, receive, send)

        client, _, server = await _listening(waits)
        asked = asyncio.create_task(client.get("/", timeout=60.0))
        await asyncio.sleep(1.0)

        async def end_answers() -> None:
            may_end.set()

        await server.drain(end_answers)
        assert (await asked).status_code == 200

    _run(main)
