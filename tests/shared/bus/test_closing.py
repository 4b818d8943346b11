"""The end of a connection, on the event loop that services have."""

import asyncio
import subprocess
from pathlib import Path

import uvloop

from services.local.stack.machine import free_port
from shared.bus import Bus
from tests.conftest import nats_server_binary, wait_for_port


def test_a_connection_can_be_closed_while_the_server_is_away(tmp_path: Path) -> None:
    """With messages that were not sent yet: uvloop raises where something is written to a transport that is closed."""
    port = free_port()
    server = subprocess.Popen([nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path)])

    async def run() -> None:
        bus = await Bus.connect(f"nats://127.0.0.1:{port}", "test")
        server.kill()
        server.wait()
        while bus.is_connected:  # noqa: ASYNC110  # the connection says it nowhere else
            await asyncio.sleep(0)
        await bus.publish("slackwater.test", {"kept": "until the server is back"})
        await bus.close()

    try:
        wait_for_port(port, server)
        uvloop.run(run())
    finally:
        server.kill()
        server.wait()
