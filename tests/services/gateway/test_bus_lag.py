"""What the bus takes to answer is measured as it is, with a real nats-server that is held and that goes."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.gateway.bus_lag import BusLag
from services.local.stack.machine import free_port
from shared.bus import Bus
from shared.clock import SystemClock
from shared.process.telemetry import Telemetry
from tests.conftest import nats_server_binary, wait_for_port

HELD_S = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen([nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path)])
    try:
        wait_for_port(port, process)
        yield f"nats://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait(10)


async def test_a_server_that_is_held_is_seen_and_one_that_is_away_is_not_measured(
    server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, process = server
    bus = await Bus.connect(url, "test")
    clock = SystemClock()
    lag = BusLag(bus, clock, Telemetry("test").meter)
    begun_s = clock.monotonic_s()
    at_rest_s = await lag.ask()
    assert at_rest_s is not None and 0.0 < at_rest_s <= clock.monotonic_s() - begun_s
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
    asyncio.get_running_loop().call_later(HELD_S, process.send_signal, signal.SIGCONT)
    begun_s = clock.monotonic_s()
    held_s = await lag.ask()
    assert held_s is not None and HELD_S <= held_s <= clock.monotonic_s() - begun_s
    process.kill()
    async with asyncio.timeout(30):
        while await lag.ask() is not None:
            pass
    await bus.close()
