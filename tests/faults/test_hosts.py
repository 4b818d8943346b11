"""Hosts whose networks are cut, one without the other."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import msgspec
import pytest

from services.executor.handover.nixl_link import NixlLink
from shared.protocol.handover import KVAddress, Place
from tests.faults.stack.hosts import BUS, DATA, KV_BY_DATA, Hosts, may_make_hosts
from tests.services.executor.handover import other_process
from tests.services.executor.handover.other_process import Memory, expected

NUM_BLOCKS, QUIET_S = 8, 0.5
BEHIND_A_BRIDGE = {"UCX_TLS": "tcp", "UCX_TCP_BRIDGE_ENABLE": "y"}


@pytest.mark.skipif(not may_make_hosts(), reason="network namespaces cannot be made here")
@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
def test_kv_comes_by_the_network_of_data_alone() -> None:
    """In a process of its own: UCX looks once for the networks there are, and one that has used it sees no new ones."""
    subprocess.run([sys.executable, "-m", __name__], env=os.environ | BEHIND_A_BRIDGE, check=True)


@contextmanager
def on_host(hosts: Hosts, host: str) -> Iterator[KVAddress]:
    """Of another process's memory there, once it serves it."""
    command = [*hosts.on(host), sys.executable, "-m", other_process.__name__, host, str(NUM_BLOCKS), "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | KV_BY_DATA, **pipes) as process:
        try:
            assert process.stdout is not None
            yield msgspec.json.decode(process.stdout.readline(), type=KVAddress)
        finally:
            process.kill()


async def read_by_data() -> None:
    """What is read while that is cut comes once it is mended."""
    memory = Memory(NUM_BLOCKS)
    with (
        Hosts("other") as hosts,
        on_host(hosts, "other") as address,
    ):
        link = NixlLink(Place("reader", "epoch"), memory.regions)
        try:
            await link.connect(address)
            hosts.cut("other", BUS)
            await link.read(address.place, [(1, 2)])
            hosts.cut("other", DATA)
            reading = asyncio.ensure_future(link.read(address.place, [(3, 4)]))
            await asyncio.wait((reading,), timeout=QUIET_S)
            assert not reading.done()
            hosts.mend("other", DATA)
            await reading
        finally:
            await link.close()
    for region, part in enumerate(memory.parts):
        assert (part[2] == expected(region, 1)).all() and (part[4] == expected(region, 3)).all()


if __name__ == "__main__":
    asyncio.run(read_by_data())
