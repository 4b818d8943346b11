"""Another executor's memory, in a process of its own: ``python -m ... NAME NUM_BLOCKS``."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from services.executor.handover.nixl_link import NixlLink
from shared.protocol.handover import KVAddress, Place
from shared.replica.engine import KVRegion, KVRegions

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
def other_process(
    name: str, num_blocks: int, repeat: int = 1, before: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], KVAddress]]:
    """The process and its address, once it serves its memory. ``before``: its command; ``environ``: added to this
    process's own."""
    command = [*before, sys.executable, "-m", __name__, name, str(num_blocks), str(repeat)]
    own = os.environ | dict(environ or {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=own)
    try:
        assert process.stdout is not None
        yield process, msgspec.json.decode(process.stdout.readline(), type=KVAddress)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stdin):
            if pipe is not None:
                pipe.close()


async def serve(name: str, num_blocks: int, repeat: int) -> None:
    memory = Memory(num_blocks, repeat, fill=True)
    link = NixlLink(Place(name, "epoch"), memory.regions)
    sys.stdout.buffer.write(msgspec.json.encode(link.address) + b"\n")
    sys.stdout.buffer.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await link.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
