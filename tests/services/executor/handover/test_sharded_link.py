"""Reads where both executors have their KV in several processes: each reads its part of its like."""

import asyncio
import importlib.util
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.executor.handover.link import KVLink
from services.executor.handover.shard_calls import ShardStreams
from services.executor.handover.shard_server import serve_in_thread
from services.executor.handover.sharded_link import ShardedLink
from services.executor.handover.sim_link import SimLink
from shared.errors import EngineLostError, LinkError
from shared.protocol.codec import decode, encode
from shared.protocol.executors import EngineSpec
from shared.protocol.handover import KVAddress, Place
from shared.simulation.link import Link
from tests.programs import stand_still
from tests.services.executor.handover.rig import until
from tests.services.executor.handover.shard_processes import ShardProcesses, connected, shard_processes
from tests.unseen import no_error_unseen

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL is not installed")

NUM_BLOCKS, QUIET_S = 32, 0.1
SPEC = EngineSpec("test", "test", "cpu", "float32", 64, 1000, 16, NUM_BLOCKS, ())
LINK = Link(1e9)
GIVER, TAKER = Place("giver", "one"), Place("taker", "one")


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between hosts: a process that stands still sends nothing."""
    monkeypatch.setenv("UCX_TLS", "tcp")


@pytest.fixture
def folder() -> Iterator[Path]:
    """The name of a socket may not be long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def both(folder: Path) -> Iterator[tuple[ShardProcesses, ShardProcesses]]:
    """Giver and taker, of two processes each; each process of the giver has other numbers."""
    with ExitStack() as stack:
        giver, taker = (stack.enter_context(shard_processes(folder / name, 2, NUM_BLOCKS)) for name in ("g", "t"))
        fill(giver)
        yield giver, taker


def fill(giver: ShardProcesses) -> None:
    for number, part in enumerate(giver.parts):
        part[:] = [[expected(number, block)] for block in range(NUM_BLOCKS)]


def expected(process: int, block: int) -> int:
    """Each byte of a block there; never 0."""
    return 1 + block + 100 * process


@asynccontextmanager
async def linked(giver: ShardProcesses, taker: ShardProcesses) -> AsyncIterator[tuple[ShardedLink, ShardedLink]]:
    links = [await ShardedLink.begin(GIVER, giver.shards), await ShardedLink.begin(TAKER, taker.shards)]
    try:
        yield links[0], links[1]
    finally:
        for link in links:
            await link.close()


@asynccontextmanager
async def waited_for(
    number: int, both: tuple[ShardProcesses, ShardProcesses]
) -> AsyncIterator[tuple[ShardedLink, ShardedLink, asyncio.Future[None]]]:
    """This process of the giver, which is stopped, by a read of block 3 into block 4."""
    async with linked(*both) as (there, here):
        await here.connect(there.address)
        stand_still(both[0].processes[number].pid)
        reading = asyncio.ensure_future(here.read(GIVER, [(3, 4)]))
        await asyncio.wait((reading,), timeout=QUIET_S)
        assert not reading.done()
        yield there, here, reading


async def test_each_process_reads_its_part(both: tuple[ShardProcesses, ShardProcesses]) -> None:
    """Where one could not be connected to its like, none is; all can be, once it can."""
    _, taker = both
    async with linked(*both) as (there, here):
        first, second = decode(there.address.peer, list[KVAddress])
        spoilt = replace(there.address, peer=encode([first, replace(second, peer=b"nothing")]))
        with pytest.raises(LinkError, match="process 1 of the KV: giver"):
            await here.connect(spoilt)
        assert not here.is_connected(GIVER)
        await here.connect(there.address)
        assert here.is_connected(GIVER) and here.kind == "nixl"
        pairs = [[(block, NUM_BLOCKS - 1 - block)] for block in range(NUM_BLOCKS // 2)]
        await asyncio.gather(*(here.read(GIVER, each) for each in pairs))
    for number, part in enumerate(taker.parts):
        for block in range(NUM_BLOCKS):
            source = NUM_BLOCKS - 1 - block
            assert (part[block] == (expected(number, source) if source < NUM_BLOCKS // 2 else 0)).all()


async def test_the_whole_waits_for_the_last_and_fails_with_one(both: tuple[ShardProcesses, ShardProcesses]) -> None:
    giver, taker = both
    async with waited_for(1, both) as (_, here, reading):
        await until(lambda: (taker.parts[0][4] == expected(0, 3)).all())
        assert not reading.done()
        giver.processes[1].kill()
        with pytest.raises(LinkError, match="process 1 of the KV"):
            await reading
        assert not taker.parts[1].any()
        await here.disconnect(GIVER)
        assert not here.is_connected(GIVER)
        with pytest.raises(LinkError, match="giver is not connected"):
            await here.read(GIVER, [(3, 4)])


async def test_own_processes_that_are_gone_are_connected_to_nobody(both: tuple[ShardProcesses, ShardProcesses]) -> None:
    with no_error_unseen():
        async with waited_for(0, both) as (there, here, reading):
            here.check()
            for process in both[1].processes:
                stand_still(process.pid)
            unread = asyncio.ensure_future(here.read(GIVER, [(5, 6)]))  # as they die: their end says so by a reset
            await asyncio.wait((unread,), timeout=QUIET_S)
            for process in both[1].processes:
                process.kill()
            for each in (reading, unread):
                with pytest.raises(LinkError, match="process 0 of the KV: it is gone"):
                    await each
            assert not here.is_connected(GIVER)
            with pytest.raises(LinkError, match="it is gone"):
                await here.connect(there.address)
            with pytest.raises(EngineLostError, match="process 0 of the KV: it is gone"):
                here.check()
        del there, here, reading, unread, each


async def test_closed_while_a_stopped_process_is_waited_for(both: tuple[ShardProcesses, ShardProcesses]) -> None:
    giver, taker = both
    async with waited_for(0, both) as (_, here, reading):
        await here.close()
        with pytest.raises(asyncio.CancelledError):
            await reading
        os.kill(giver.processes[0].pid, signal.SIGCONT)
    assert not taker.parts[0].any()


async def test_as_many_processes_with_as_much_are_needed(folder: Path) -> None:
    """And it is said in words what differs."""
    here = await ShardedLink.begin(TAKER, threads(folder / "here", [SPEC, SPEC]))
    larger = replace(SPEC, block_size=2 * SPEC.block_size)
    for number, specs in enumerate(([SPEC], [SPEC, SPEC, SPEC], [SPEC, larger], [replace(SPEC, model="x")] * 2)):
        there = await ShardedLink.begin(GIVER, threads(folder / f"there-{number}", specs))
        with pytest.raises(LinkError, match=r"giver has other KV: in [123] processes, .* here in 2 processes, 2 with"):
            await here.connect(there.address)
        with pytest.raises(LinkError, match="taker has other KV"):
            await there.connect(here.address)
        same_words = replace(there.address, layout=here.address.layout)
        with pytest.raises(LinkError, match=r"process [01] of the KV: giver has other KV|giver: its parts are not"):
            await here.connect(same_words)
        await there.close()
    alike = await ShardedLink.begin(GIVER, threads(folder / "alike", [SPEC, SPEC]))
    await here.connect(alike.address)
    assert here.is_connected(GIVER)
    with pytest.raises(LinkError, match="giver has other KV"):
        await SimLink(TAKER, SPEC, LINK).connect(alike.address)
    for link in (here, alike):
        await link.close()


async def test_a_process_that_cannot_make_its_link(folder: Path) -> None:
    def make_none(place: Place) -> KVLink:
        raise LinkError(f"no memory for {place.executor_id}")

    shards = threads(folder, [SPEC])
    serve_in_thread(folder / "none", make_none)
    shards.connections.append(connected(folder / "none"))
    with pytest.raises(LinkError, match="process 1 of the KV: no memory for taker"):
        await ShardedLink.begin(TAKER, shards)


def threads(folder: Path, specs: Iterable[EngineSpec]) -> ShardStreams:
    """Served in this process, without memory."""
    folder.mkdir(exist_ok=True)
    connections = []
    for number, spec in enumerate(specs):
        path = folder / str(number)
        serve_in_thread(path, partial(SimLink, spec=spec, link=LINK))
        connections.append(connected(path))
    return ShardStreams(connections)
