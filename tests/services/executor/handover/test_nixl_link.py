"""Reads out of another process's memory: what comes, and what becomes of them when that process fails."""

import asyncio
import importlib.util
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from services.executor.handover import nixl_link
from services.executor.handover.nixl_link import NixlLink
from shared.errors import LinkError
from shared.protocol.handover import KVAddress, Place
from shared.replica.engine import KVRegion, KVRegions
from tests.programs import Program, stand_still
from tests.services.executor.handover.other_process import Memory, expected, other_process

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL is not installed")

NUM_BLOCKS = 64
Others = list[tuple[Program, KVAddress]]
LARGE = 512  # times the bytes of a block: 48 MiB in all, which takes a while


@pytest.fixture(scope="module", params=["all", "tcp"])
def transports(request: pytest.FixtureRequest) -> Iterator[str]:
    """What UCX may use: whatever it finds, or as between hosts."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("UCX_TLS", request.param)
        yield str(request.param)


@pytest.fixture(scope="module")
def others(transports: str) -> Iterator[Others]:
    """Two that stay, for every test that ends none."""
    with other_process("first", 2 * NUM_BLOCKS) as first, other_process("second", NUM_BLOCKS) as second:
        yield [first, second]


@pytest.fixture
def memory() -> Memory:
    return Memory(NUM_BLOCKS)


@pytest.fixture
async def link(memory: Memory, transports: str) -> AsyncIterator[NixlLink]:
    link = NixlLink(Place("reader", "epoch"), memory.regions)
    yield link
    await link.close()


async def test_scattered_blocks_come_and_others_stay(link: NixlLink, memory: Memory, others: Others) -> None:
    (_, address), _ = others
    assert not link.is_connected(address.place)
    await link.connect(address)
    assert link.is_connected(address.place)
    theirs, own = random.Random(0).sample(range(2 * NUM_BLOCKS), 40), random.Random(1).sample(range(NUM_BLOCKS), 40)
    await link.read(address.place, list(zip(theirs, own, strict=True)))
    for region, part in enumerate(memory.parts):
        for block in range(NUM_BLOCKS):
            there = expected(region, theirs[own.index(block)]) if block in own else 0
            assert (part[block] == there).all()


async def test_many_reads_at_a_time_from_two(link: NixlLink, memory: Memory, others: Others) -> None:
    (_, first), (_, second) = others
    await asyncio.gather(link.connect(first), link.connect(second))
    halves = (range(0, NUM_BLOCKS, 2), first), (range(1, NUM_BLOCKS, 2), second)
    reads = [link.read(each.place, [(block, block)]) for blocks, each in halves for block in blocks]
    await asyncio.gather(*reads)
    for region, part in enumerate(memory.parts):
        assert all((part[block] == expected(region, block)).all() for block in range(NUM_BLOCKS))


async def test_a_killed_peer_is_an_error_and_others_go_on(link: NixlLink, memory: Memory, others: Others) -> None:
    _, (_, other) = others
    with other_process("doomed", NUM_BLOCKS) as (process, doomed):
        await asyncio.gather(link.connect(doomed), link.connect(other))
        process.kill()
        process.wait()
        with pytest.raises(LinkError):
            await link.read(doomed.place, [(0, 0)])
        await link.disconnect(doomed.place)
        assert not link.is_connected(doomed.place)
        with pytest.raises(LinkError, match="not connected"):
            await link.read(doomed.place, [(0, 0)])
        await link.read(other.place, [(5, 6)])
    assert (memory.parts[1][6] == expected(1, 5)).all()


async def test_a_peer_killed_in_the_middle(transports: str) -> None:
    memory = Memory(NUM_BLOCKS, LARGE)
    link = NixlLink(Place("reader", "epoch"), memory.regions)
    everything = [(block, block) for block in range(NUM_BLOCKS)]
    with other_process("doomed", NUM_BLOCKS, LARGE) as (process, doomed):
        await link.connect(doomed)
        reading = asyncio.ensure_future(link.read(doomed.place, everything))
        await until(lambda: bool(memory.parts[0][0, 0]))
        process.kill()
        try:
            await reading
            assert memory.parts[-1][-1, -1] == expected(len(memory.parts) - 1, NUM_BLOCKS - 1)
        except LinkError:
            kept = [part.copy() for part in memory.parts]
            await link.disconnect(doomed.place)
            assert all((part == before).all() for part, before in zip(memory.parts, kept, strict=True))
    await link.close()


async def test_a_stopped_peer_is_waited_for(link: NixlLink, memory: Memory, transports: str, others: Others) -> None:
    """Over TCP it has to send; its memory can be read without it on one host."""
    _, (process, stopped) = others
    await link.connect(stopped)
    stand_still(process.pid)
    try:
        reading = asyncio.ensure_future(link.read(stopped.place, [(1, 2)]))
        await asyncio.wait((reading,), timeout=0.5 if transports == "tcp" else 30.0)
        assert reading.done() == (memory.parts[0][2, 0] != 0)
        assert reading.done() or transports == "tcp"
    finally:
        os.kill(process.pid, signal.SIGCONT)
    await reading
    assert (memory.parts[0][2] == expected(0, 1)).all()


@pytest.mark.parametrize("transports", ["tcp"], indirect=True)
async def test_closed_while_a_stopped_peer_is_waited_for(memory: Memory, transports: str) -> None:
    link = NixlLink(Place("reader", "epoch"), memory.regions)
    with other_process("stopped", NUM_BLOCKS) as (process, stopped):
        await link.connect(stopped)
        stand_still(process.pid)
        reading = asyncio.ensure_future(link.read(stopped.place, [(1, 2)]))
        await asyncio.wait((reading,), timeout=0.2)
        await link.close()
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await reading
        with other_process("later", NUM_BLOCKS) as (_, later):  # time in which it could have come
            again = NixlLink(Place("reader", "again"), Memory(NUM_BLOCKS).regions)
            await again.connect(later)
            await again.close()
    assert not memory.parts[0].any()


@pytest.mark.parametrize("transports", ["tcp"], indirect=True)
async def test_of_a_peer_that_does_not_answer_nothing_stays(
    memory: Memory, transports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its read is over, which until then is waited for by no other."""
    link = NixlLink(Place("reader", "epoch"), memory.regions)
    with other_process("silent", NUM_BLOCKS) as (process, address):
        stand_still(process.pid)
        with monkeypatch.context() as impatient:
            impatient.setattr(nixl_link, "CONNECT_S", 0.3)
            with pytest.raises(LinkError, match="does not answer"):
                await link.connect(address)
        with pytest.raises(LinkError, match="an earlier connection is not over"):
            await link.connect(address)
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.wait_for(until(lambda: not link._leaving and not link._reads), 60)
        await link.connect(address)
        await link.read(address.place, [(1, 2)])
    assert (memory.parts[0][2] == expected(0, 1)).all()
    await link.close()


async def test_other_layouts_and_other_links_are_refused(link: NixlLink, others: Others) -> None:
    (_, address), _ = others
    with pytest.raises(LinkError, match="has other KV: test x2"):
        await link.connect(replace(address, layout="test x2"))
    with pytest.raises(LinkError, match="first"):
        await link.connect(replace(address, peer=b"nothing that parses"))
    assert not link.is_connected(address.place)


async def test_regions_that_take_turns_in_one_memory(transports: str, others: Others) -> None:
    """As where all layers of a block lie together, at the reader's."""
    sizes = [part.shape[1] for part in Memory(1).parts]
    together, starts = np.zeros((NUM_BLOCKS, sum(sizes)), np.uint8), np.cumsum([0, *sizes])
    runs = [
        KVRegion(together.ctypes.data + int(start), size, sum(sizes))
        for start, size in zip(starts[:-1], sizes, strict=True)
    ]
    link = NixlLink(Place("reader", "epoch"), KVRegions("test x1", NUM_BLOCKS, runs))
    _, (_, address) = others
    await link.connect(address)
    await link.read(address.place, [(block, NUM_BLOCKS - 1 - block) for block in range(10)])
    for block in range(10):
        numbers = [int(together[NUM_BLOCKS - 1 - block, start]) for start in starts[:-1]]
        assert numbers == [expected(region, block) for region in range(len(sizes))]
    assert not together[: NUM_BLOCKS - 10].any()
    await link.close()


async def test_a_new_incarnation_is_another(link: NixlLink, memory: Memory) -> None:
    for block in range(2):
        with other_process("same", NUM_BLOCKS) as (process, address):
            await link.connect(address)
            await link.read(address.place, [(block, block)])
            process.kill()
            process.wait()
            await link.disconnect(address.place)
    assert all((memory.parts[0][block] == expected(0, block)).all() for block in range(2))


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0)
