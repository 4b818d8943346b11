"""What the processes of a stack and its bus's store hold, looked at again and again."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from benchmarks.harness.stack import MIB
from services.local.stack.data_dir import CONNECT_S, DataDir, bus_at
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, StackError

SUPERVISOR = "slackwater up"


class Held(msgspec.Struct, frozen=True):
    """What a process told of itself (``inside/sitecustomize.py``). ``blocks``: of memory that Python has given out;
    ``heap_mib``: of the C library, of which ``free_mib`` are free."""

    blocks: int
    heap_mib: float | None = None
    free_mib: float | None = None

    @property
    def used_mib(self) -> float | None:
        return None if self.heap_mib is None or self.free_mib is None else self.heap_mib - self.free_mib


class ProcessSample(msgspec.Struct, frozen=True):
    """``num_files``: descriptors, sockets among them."""

    pid: int
    rss_mib: float
    num_files: int
    num_sockets: int
    num_threads: int
    cpu_s: float
    held: Held | None = None


class StackSample(msgspec.Struct, frozen=True):
    """``streams``: bytes, messages and consumers of each stream of the bus. ``load``: the machine's average of a
    minute."""

    time_s: float
    processes: dict[str, ProcessSample]
    streams: dict[str, tuple[int, int, int]]
    disk_mib: float
    load: float

    @property
    def stream_mib(self) -> float:
        return sum(num_bytes for num_bytes, _, _ in self.streams.values()) / MIB

    @property
    def num_messages(self) -> int:
        return sum(messages for _, messages, _ in self.streams.values())

    @property
    def num_consumers(self) -> int:
        return sum(consumers for _, _, consumers in self.streams.values())


class Sampler:
    """Writes a line of JSON for each sample, so that what was seen stays if the run is cut short."""

    def __init__(self, data_dir: DataDir, file: Path, objects: Path | None = None) -> None:
        self.samples: list[StackSample] = []
        self._data_dir = data_dir
        self._file = file
        self._objects = objects

    async def run(self, period_s: float, tell: Callable[[StackSample], None] = lambda _: None) -> None:
        """Until it is cancelled."""
        async with bus_at(self._data_dir.read_stack().bus, "reliability-sampler", CONNECT_S) as bus:
            while True:
                sample = await self._sample(bus)
                self.samples.append(sample)
                with self._file.open("ab") as file:
                    file.write(msgspec.json.encode(sample) + b"\n")
                tell(sample)
                check_cancelled()  # the bus's client may have taken a cancellation for a timeout
                await asyncio.sleep(period_s)

    async def _sample(self, bus: Bus) -> StackSample:
        try:
            sizes = await bus.sizes()
        except BusError:  # it is very busy: the rest is worth knowing
            sizes = {}
        streams = {name: (each.bytes, each.messages, each.consumers) for name, each in sizes.items()}
        processes, disk_mib = await asyncio.to_thread(self._look)
        return StackSample(time.time(), processes, streams, disk_mib, os.getloadavg()[0])

    def _look(self) -> tuple[dict[str, ProcessSample], float]:
        try:
            stack = self._data_dir.read_stack()
        except StackError:
            return {}, 0.0
        pids = {name: entry.pid for name, entry in stack.processes.items() if entry.pid is not None}
        processes = {}
        for name, pid in {**pids, SUPERVISOR: stack.supervisor_pid}.items():
            try:
                processes[name] = process_sample(pid, self._objects)
            except (psutil.Error, OSError):  # it has just ended
                continue
        return processes, folder_mib(self._data_dir.path)


def process_sample(pid: int, objects: Path | None = None) -> ProcessSample:
    """Raises psutil.Error and OSError for one that is gone."""
    process = psutil.Process(pid)
    with process.oneshot():
        files = list(_files(pid))
        return ProcessSample(
            pid,
            process.memory_info().rss / MIB,
            len(files),
            sum(each.startswith("socket:") for each in files),
            process.num_threads(),
            sum(process.cpu_times()[:2]),
            None if objects is None else _held(objects / f"{pid}.jsonl"),
        )


def folder_mib(folder: Path) -> float:
    """Of all files below it; those that go meanwhile count for nothing."""
    num_bytes = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                num_bytes += (Path(path) / name).lstat().st_size
    return num_bytes / MIB


def read_samples(file: Path) -> list[StackSample]:
    """As a Sampler wrote them."""
    return [msgspec.json.decode(line, type=StackSample) for line in file.read_bytes().splitlines()]


def _files(pid: int) -> Iterator[str]:
    """What each descriptor is of."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(entry.readlink())


def _held(file: Path) -> Held | None:
    try:
        last = file.read_bytes().splitlines()[-1]
    except (FileNotFoundError, IndexError):
        return None
    return msgspec.json.decode(last, type=Held)
