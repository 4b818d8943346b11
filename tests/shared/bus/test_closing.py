"""The end of a connection, on the event loop that services have."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import uvloop

from services.local.stack.machine import free_port
from services.local.stack.processes.process import GRACE_S
from shared.bus import Bus
from shared.bus.lease import Lease
from shared.clock import SystemClock
from shared.protocol.requests import AbortRequests
from tests.conftest import nats_server_binary, wait_for_port
from tests.programs import stand_still


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


def test_a_connection_whose_server_stands_still_is_closed_before_its_process_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        bus = await Bus.connect(url, "test")
        lease = Lease(bus, "test", SystemClock())
        await lease.take(lambda holder: None)
        await bus.subscribe("test.in", AbortRequests, asyncio.Event().wait)
        await bus.flush()
        stand_still(server.pid)
        async with asyncio.timeout(GRACE_S):
            await lease.release()
            await bus.close()

    with running_server(tmp_path) as (server, url):
        try:
            uvloop.run(run())
        finally:
            server.send_signal(signal.SIGCONT)
