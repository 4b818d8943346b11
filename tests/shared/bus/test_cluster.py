"""A bus of three servers: what was acknowledged is there when one of them is lost."""

import asyncio
import contextlib
import itertools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from services.local.stack.machine import free_port
from services.predictor.settings import PredictorSettings
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.connection import CLUSTER_PING_S, PING_S
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.access.key_usage import KeyUsage
from shared.settings.setting import settings_of
from tests.conftest import nats_server_binary, wait_for_port

WORK = subjects.of_model("m")  # what is stored is of this model

NUM_WRITES, NUM_ROUNDS = 200, 4
WITHIN_S = 200.0
EVERY = "slackwater.results.>"


class Cluster:
    """Servers by number, each with a store of its own. ``url`` names all of them."""

    def __init__(self, folder: Path, num_servers: int) -> None:
        self._folder = folder
        self._ports = [free_port() for _ in range(num_servers)]
        self._routes = [free_port() for _ in range(num_servers)]
        self.url = ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def server_of(self, bus: Bus) -> int:
        """The number of the one that it is connected to."""
        url = bus._client.connected_url
        assert url is not None and url.port is not None
        return self._ports.index(url.port)

    def start(self, number: int) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
        config = self._folder / f"{number}.conf"
        config.write_text(
            f'server_name: server-{number}\nlisten: "127.0.0.1:{self._ports[number]}"\n'
            f'jetstream {{ store_dir: "{self._folder / str(number)}" }}\n'
            f'cluster {{ name: test, listen: "127.0.0.1:{self._routes[number]}", routes: [{routes}] }}\n'
        )
        with (self._folder / f"{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen([nats_server_binary(), "-c", str(config)], stderr=log)
        wait_for_port(self._ports[number], self._processes[number])

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def signal(self, number: int, signum: signal.Signals) -> None:
        self._processes[number].send_signal(signum)

    def close(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 3)
    try:
        for number in range(3):
            made.start(number)
        yield made
    finally:
        made.close()


async def made_streams(bus: Bus) -> None:
    """Once the servers have found each other."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(BusError):
                if bus.num_servers == 3:
                    await bus.ensure_streams()
                    await bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
                    return
            await asyncio.sleep(0.2)


async def replicas_of(bus: Bus, stream: str) -> int:
    return (await bus.size(stream)).copies


async def leader_of(bus: Bus, stream: str) -> int:
    """The number of the server that takes what is stored."""
    info = await bus._client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5)
    name = msgspec.json.decode(info.data)["cluster"]["leader"]
    return int(name.rpartition("-")[2])


async def store_until(bus: Bus, num_writes: int, numbers: Iterator[int], acknowledged: list[str]) -> None:
    """Go on until so many are; those that are not known to be stored are left."""
    while len(acknowledged) < num_writes:
        subject = WORK.result(f"batch_1.{next(numbers)}")
        with contextlib.suppress(BusError):
            await bus.store(subject, subject)
            acknowledged.append(subject)


async def subjects_read(bus: Bus) -> list[str]:
    """Of all that is stored, once JetStream answers: while servers choose a leader it does not."""
    while True:
        with contextlib.suppress(BusError):
            return [each.subject async for each in bus.read(subjects.RESULTS_STREAM, EVERY, str)]
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_with_the_server_that_had_taken_it(cluster: Cluster) -> None:
    bus = await Bus.connect(BusAddress(cluster.url), "test")
    try:
        await made_streams(bus)
        assert [
            await replicas_of(bus, each) for each in (subjects.RESULTS_STREAM, f"KV_{subjects.KEY_USAGE_BUCKET}")
        ] == [3, 3]
        acknowledged: list[str] = []
        numbers = itertools.count()
        lost = await leader_of(bus, subjects.RESULTS_STREAM)
        async with asyncio.timeout(WITHIN_S):
            await store_until(bus, NUM_WRITES // 2, numbers, acknowledged)
            await asyncio.to_thread(cluster.kill, lost)
            await store_until(bus, NUM_WRITES, numbers, acknowledged)
            stored = await subjects_read(bus)
        assert set(acknowledged) <= set(stored) and len(stored) == len(set(stored))
        await asyncio.to_thread(cluster.start, lost)
    finally:
        await bus.close()


@pytest.mark.slow
async def test_what_one_server_held_gets_copies_and_no_asked_number_is_exceeded(cluster: Cluster) -> None:
    one = await Bus.connect(BusAddress(cluster.url, replicas=1), "one")
    bus = await Bus.connect(BusAddress(cluster.url), "test")
    try:
        await made_streams(one)
        await one.store(WORK.result("batch_1.1"), 1)
        assert await replicas_of(bus, subjects.RESULTS_STREAM) == 1
        await one.raise_replicas(subjects.STORED)
        assert await replicas_of(bus, subjects.RESULTS_STREAM) == 1
        await bus.raise_replicas(subjects.STORED)
        assert (
            await replicas_of(bus, subjects.RESULTS_STREAM)
            == await replicas_of(bus, f"KV_{subjects.KEY_USAGE_BUCKET}")
            == 3
        )
        await one.raise_replicas(subjects.STORED)
        assert await replicas_of(bus, subjects.RESULTS_STREAM) == 3
        assert [each.message async for each in bus.read(subjects.RESULTS_STREAM, EVERY, int)] == [1]
    finally:
        await one.close()
        await bus.close()


async def test_a_server_of_its_own_keeps_one_copy(nats_url: str) -> None:
    bus = await Bus.connect(nats_url, "test")
    try:
        await bus.ensure_streams()
        assert (bus.replicas, await replicas_of(bus, subjects.RESULTS_STREAM)) == (1, 1)
    finally:
        await bus.close()


@pytest.mark.parametrize(("replicas", "ping_s"), [(0, PING_S), (1, PING_S), (3, CLUSTER_PING_S)])
async def test_a_silent_server_is_left_soon_where_others_are_beside_it(
    nats_url: str, replicas: int, ping_s: float
) -> None:
    """Also behind one name, as in Kubernetes: who asks for copies says so."""
    assert BusAddress("nats://a:4222, nats://b:4222").is_cluster
    bus = await Bus.connect(BusAddress(nats_url, replicas=replicas), "test")
    try:
        assert bus._client.options["ping_interval"] == ping_s
    finally:
        await bus.close()


@pytest.mark.parametrize("text", ["2", "seven", "-1"])
def test_a_number_of_copies_is_one_that_servers_can_keep(text: str) -> None:
    (setting,) = [each for each in settings_of(PredictorSettings) if each.name == "nats_replicas"]
    with pytest.raises(ValueError, match="known: auto, 1, 3, 5"):
        setting.convert(text, strict=False)


@pytest.mark.slow
async def test_what_was_acknowledged_is_read_at_once_though_a_server_lags(cluster: Cluster) -> None:
    """It has stood still, and gets what it has missed while it is asked."""
    writer, reader = [await Bus.connect(BusAddress(cluster.url), name) for name in ("writer", "reader")]
    try:
        await made_streams(writer)
        used = (await leader_of(writer, subjects.RESULTS_STREAM), cluster.server_of(writer))
        late = next(number for number in range(3) if number not in used)
        expected: set[str] = set()
        async with asyncio.timeout(WITHIN_S):
            for round in range(NUM_ROUNDS):
                cluster.signal(late, signal.SIGSTOP)
                written = [(WORK.result(f"batch_{round}.{number}"), "x" * 100_000) for number in range(40)]
                with contextlib.suppress(BusError):  # those that were not confirmed may be there
                    await writer.store_many(written)
                    expected |= {subject for subject, _ in written}
                cluster.signal(late, signal.SIGCONT)
                for _ in range(4):
                    found = set(await subjects_read(reader))
                    assert expected <= found, (len(expected - found), round)
        assert expected
    finally:
        await writer.close()
        await reader.close()
