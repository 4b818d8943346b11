"""A bus that stores nothing more, since it has as much as it may: real processes, the sim engine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.bus import Bus
from shared.errors import NoRoomOnBusError
from shared.process.healthcheck import service_health
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until
from tests.shared.bus.servers import RealServer

MOST_BYTES = 2 * 1024**2
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "%s", "prompt": "%s"}}\n'
PRESET = ("--preset", "sarathi++")  # asks for no latency model


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    server = RealServer(tmp_path / "nats", MOST_BYTES)
    try:
        with GatewayRig(tmp_path, server.url) as made:
            made.start_offline_queue(*PRESET)
            made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.1")
            made.start_gateway()
            made.wait_ready()
            yield made
    finally:
        server.kill()


def upload(rig: GatewayRig) -> httpx.Response:
    line = LINE % (MODEL.encode(), b"x" * 256 * 1024)
    return httpx.post(f"{rig.url}/v1/files", data={"purpose": "batch"}, files={"file": line}, timeout=30)


async def fill_up(nats_url: str) -> None:
    bus = await Bus.connect(nats_url, "test")
    words = await bus.bucket("test_words", str)
    with pytest.raises(NoRoomOnBusError):
        for number in range(10**6):
            await words.put(str(number), "x" * 1024)
    await bus.close()


def healths(rig: GatewayRig) -> list[str]:
    """Of those that hold a lease."""
    return [asyncio.run(service_health(rig.nats_url, name)) for name in ("executor-0", "offline-queue")]


def test_a_full_bus_says_so_and_files_can_be_deleted(rig: GatewayRig) -> None:
    uploaded: list[str] = []
    while (answer := upload(rig)).status_code == 200:
        uploaded.append(answer.json()["id"])
    assert answer.status_code == 503 and "max_file_store" in answer.json()["error"]["message"]
    asyncio.run(fill_up(rig.nats_url))
    wait_until(lambda: all("the bus has no room" in each for each in healths(rig)), rig.logs)
    assert rig.openai.completions.create(model=MODEL, prompt="Once", max_tokens=4).choices
    deleted = rig.openai.files.delete(uploaded[0])
    assert deleted.deleted and uploaded[0] not in {file.id for file in rig.openai.files.list()}
    wait_until(lambda: healths(rig) == ["ok", "ok"], rig.logs)
    batch_id = rig.submit_batch({"model": MODEL, "prompt": "Once", "max_tokens": 4} for _ in range(3))
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
