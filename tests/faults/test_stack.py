"""The parts by which a stack is hurt: links, disks and clocks do what they say."""

import asyncio
import os
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.clock import sitecustomize
from tests.faults.stack.link import CALM, Link, Weather
from tests.faults.stack.store import Disk, may_mount

QUIET_S = 0.3


@asynccontextmanager
async def echoed() -> AsyncIterator[tuple[Link, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A link to a server that sends back what comes, and one connection through it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1], random.Random(0))
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield link, reader, writer
    finally:
        writer.close()
        await link.close()
        server.close()


async def comes(reader: asyncio.StreamReader, num_bytes: int) -> bytes | None:
    """None where nothing comes for a while."""
    try:
        async with asyncio.timeout(QUIET_S):
            return await reader.readexactly(num_bytes)
    except TimeoutError:
        return None


@pytest.mark.parametrize("weather", [Weather(up=False), Weather(down=False), Weather(up=False, down=False)])
async def test_a_cut_link_holds_everything_back_and_loses_nothing(weather: Weather) -> None:
    async with echoed() as (link, reader, writer):
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        await link.set(weather)
        writer.write(b"two")
        assert await comes(reader, 3) is None
        await link.set(CALM)
        assert await reader.readexactly(3) == b"two"


async def test_a_slow_and_lossy_link_keeps_the_order() -> None:
    async with echoed() as (link, reader, writer):
        await link.set(Weather(delay_s=0.01, loss=0.3))
        for number in range(10):
            writer.write(struct.pack("<I", number))
            await asyncio.sleep(0)
        assert struct.unpack("<10I", await reader.readexactly(40)) == tuple(range(10))


async def test_a_broken_link_ends_the_connection_and_takes_new_ones() -> None:
    async with echoed() as (link, reader, writer):
        writer.write(b"one")
        await reader.readexactly(3)
        link.reset()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        again, other = await asyncio.open_connection("127.0.0.1", link.port)
        other.write(b"two")
        assert await again.readexactly(3) == b"two"
        other.close()


def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    if not may_mount(tmp_path / "may"):
        pytest.skip("no disk can be mounted here")
    disk = Disk(tmp_path / "disk", num_mib=16)
    disk.open()
    try:
        for name in ("synced", "not-synced"):
            with (disk.path / name).open("wb") as file:
                file.write(b"x" * 5000)
                if name == "synced":
                    file.flush()
                    os.fsync(file.fileno())
        folder = os.open(disk.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        with (disk.path / "synced").open("ab") as file:
            file.write(b"y" * 5000)
        disk.lose_power()
        assert (disk.path / "synced").read_bytes() == b"x" * 5000
        assert not (disk.path / "not-synced").exists() or (disk.path / "not-synced").stat().st_size < 5000
    finally:
        disk.close()


def test_a_full_disk_takes_nothing_until_it_is_freed(tmp_path: Path) -> None:
    if not may_mount(tmp_path / "may"):
        pytest.skip("no disk can be mounted here")
    disk = Disk(tmp_path / "disk", num_mib=16)
    disk.open()
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(b"x" * 10_000)
        disk.free()
        (disk.path / "more").write_bytes(b"x" * 10_000)
    finally:
        disk.close()


def test_a_clock_jumps_while_its_process_runs(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("<d", 3600.0))
    program = f"""
import struct, time
from datetime import datetime
from pathlib import Path
first = time.time() - datetime.now().timestamp()
with Path({str(clock)!r}).open("r+b") as file:
    file.write(struct.pack("<d", -60.0))
print(round(first), round(time.time() - datetime.now().timestamp()))
"""
    environ = os.environ | {"PYTHONPATH": str(Path(sitecustomize.__file__).parent), sitecustomize.VARIABLE: str(clock)}
    printed = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["3600", "-60"]
