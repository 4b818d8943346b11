"""Another executor's memory, in a process of its own: ``python -m ... NAME NUM_BLOCKS``."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from services.executor.handover.nixl_link import NixlLink
from shared.protocol.handover import KVAddress, Place
from shared.replica.engine import KVRegion, KVRegions
from tests.programs import Program, fed_program, without_torch
from tests.services.gateway.gateway_rig import wait_until

BLOCK_BYTES = (512, 768, 256)  # of each region


class Memory:
    """Regions of [num_blocks, bytes]; the others' blocks hold what ``expected`` says."""

    def __init__(self, num_blocks: int, repeat: int = 1, fill: bool = False) -> None:
        self.parts = [np.zeros((num_blocks, size * repeat), np.uint8) for size in BLOCK_BYTES]
        for number, part in enumerate(self.parts):
            part[:] = np.array([expected(number, block) for block in range(num_blocks)])[:, None] if fill else 0
        runs = [KVRegion(part.ctypes.data, part.shape[1], part.shape[1]) for part in self.parts]
        self.regions = KVRegions(f"test x{repeat}", num_blocks, runs)


def expected(region: int, block: int) -> int:
    """Each byte of a block of the other process; never 0."""
    return (block * 7 + region * 31) % 251 + 1


@contextmanager
def other_process(name: str, num_blocks: int, repeat: int = 1) -> Iterator[tuple[Program, KVAddress]]:
    """The process and its address, once it serves its memory."""
    with fed_program(__name__, name, str(num_blocks), str(repeat)) as (process, stdout):
        wait_until(lambda: stdout.read_bytes().endswith(b"\n"), "another process does not serve its memory")
        yield process, msgspec.json.decode(stdout.read_bytes(), type=KVAddress)


async def serve(name: str, num_blocks: int, repeat: int) -> None:
    memory = Memory(num_blocks, repeat, fill=True)
    link = NixlLink(Place(name, "epoch"), memory.regions)
    sys.stdout.buffer.write(msgspec.json.encode(link.address) + b"\n")
    sys.stdout.buffer.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await link.close()


if __name__ == "__main__":
    without_torch()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
