"""Processes that each have a part of an executor's KV: ``python -m ... SOCKET MEMORY NUM_BLOCKS LAYOUT``.

The memory is a file that is mapped there and here, so that a test can look at it, and an engine here can write to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import numpy as np

from services.executor.handover.nixl_link import NixlLink
from services.executor.handover.shard_calls import ShardStreams
from services.executor.handover.shard_server import serve_in_thread
from shared.replica.engine import KVRegion, KVRegions
from tests.programs import Program, fed_program, without_torch

BLOCK_BYTES = 256  # of each part


@dataclass
class ShardProcesses:
    """``parts``: [num_blocks, BLOCK_BYTES] of each process."""

    processes: list[Program]
    parts: list[np.ndarray[Any, np.dtype[np.uint8]]]
    shards: ShardStreams


@contextmanager
def shard_processes(
    folder: Path, num_processes: int, num_blocks: int, layout: str = "test"
) -> Iterator[ShardProcesses]:
    """So many, which serve their memory, all zeros."""
    folder.mkdir()
    with ExitStack() as stack:
        processes, parts = list[Program](), []
        for rank in range(num_processes):
            memory = folder / f"memory-{rank}"
            parts.append(np.memmap(memory, np.uint8, "w+", shape=(num_blocks, BLOCK_BYTES)))
            arguments = (str(folder / str(rank)), str(memory), str(num_blocks), layout)
            processes.append(stack.enter_context(fed_program(__name__, *arguments))[0])
        shards = ShardStreams([connected(folder / str(rank)) for rank in range(num_processes)])
        stack.callback(shards.close)
        yield ShardProcesses(processes, parts, shards)


def connected(path: Path) -> socket:
    """To who serves at ``path``, once it does."""
    until_s = time.monotonic() + 60
    while True:
        connection = socket(AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            assert time.monotonic() < until_s, "a process does not serve its memory"
            time.sleep(0.01)


def main(path: Path, memory: Path, num_blocks: int, layout: str) -> None:
    part = np.memmap(memory, np.uint8, "r+", shape=(num_blocks, BLOCK_BYTES))
    regions = KVRegions(layout, num_blocks, [KVRegion(part.ctypes.data, BLOCK_BYTES, BLOCK_BYTES)])
    serve_in_thread(path, lambda place: NixlLink(place, regions))
    sys.stdin.buffer.read()


if __name__ == "__main__":
    without_torch()
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
