"""What processes take of the machine for some time."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psutil

SAMPLE_S = 0.1
MIB = 2**20


@dataclass(slots=True)
class Usage:
    """Known at the end: seconds by the clock; processor time, memory before and the most meanwhile, of each process."""

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    before_mib: dict[str, float] = field(default_factory=dict)
    most_mib: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def usage_of(processes: Mapping[str, psutil.Process]) -> Iterator[Usage]:
    """While the context lasts. Memory is looked at in a thread of its own."""
    usage, ended = Usage(before_mib=_mib(processes)), threading.Event()
    usage.most_mib = dict(usage.before_mib)

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            for name, mib in _mib(processes).items():
                usage.most_mib[name] = max(usage.most_mib[name], mib)

    sampler = threading.Thread(target=sample)
    start_s, cpu_s = time.perf_counter(), _cpu_s(processes)
    sampler.start()
    try:
        yield usage
    finally:
        usage.seconds = time.perf_counter() - start_s
        usage.cpu_s = {name: used - cpu_s[name] for name, used in _cpu_s(processes).items()}
        ended.set()
        sampler.join()


def _mib(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: process.memory_info().rss / MIB for name, process in processes.items()}


def _cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
