"""The health check that containers run, as a process."""

import asyncio
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.services import ServiceStatus


async def check(target: str, nats_url: str, **environ: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shared.process.healthcheck",
        target,
        env={**os.environ, "SLACKWATER_NATS": nats_url, **environ},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, output.decode().strip()


async def test_of_several_models_a_container_asks_for_its_own_offline_queue(bus: Bus, nats_url: str) -> None:
    async def answer(_: object) -> ServiceStatus:
        return ServiceStatus("offline-queue-b", 1, "ok", {"model": "org/B"})

    await bus.serve(subjects.PING, object, answer)
    await bus.flush()
    assert await check("offline-queue", nats_url, SLACKWATER_MODEL_NAME="org/B") == (0, "ok")
    silent = (1, "offline-queue does not answer")
    assert await check("offline-queue", nats_url, SLACKWATER_MODEL_NAME="c") == silent


async def test_a_service_is_well_ill_or_absent(bus: Bus, nats_url: str) -> None:
    health = "ok"

    async def answer(_: object) -> ServiceStatus:
        return ServiceStatus("predictor", 1, health, {})

    await bus.serve(subjects.PING, object, answer)
    await bus.flush()
    assert await check("predictor", nats_url) == (0, "ok")
    assert await check("profiler", nats_url) == (1, "profiler does not answer")
    health = "bus connection lost"
    assert await check("predictor", nats_url) == (1, "bus connection lost")


async def test_no_bus_is_no_health() -> None:
    status, output = await check("predictor", "nats://127.0.0.1:1")
    assert status == 1 and "127.0.0.1:1" in output


async def test_a_url_answers_or_not() -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 503)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Health)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert await check(f"{url}/health", "") == (0, "ok")
        behind_a_proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        assert await check(f"{url}/health", "", **behind_a_proxy) == (0, "ok")
        status, output = await check(f"{url}/ready", "")
        assert status == 1 and "503" in output
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
