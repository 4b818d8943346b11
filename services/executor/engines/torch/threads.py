"""CPU threads and memory of the torch engine. Import this before torch: its libraries read their environment when they
are loaded."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shared.process.cores import usable_cores

DEFAULTS = {
    # A waiting OpenMP thread spins for milliseconds by default. The engine shares its cores with the event loop, the
    # bus and the gateway, and a spinning thread keeps the core that the preempted one needs: one busy process beside
    # two engine threads made a step 10 times as slow. A tenth of a millisecond bridges what one thread does alone
    # between two products; with a quarter of that threads slept at most of them, and a batch took 1.5 times as long.
    "GOMP_SPINCOUNT": "4000",
    # While its threads outnumber the cores OpenMP spins 1,000 times at most with this, and a hundred times without.
    "OMP_WAIT_POLICY": "active",
    # Tensors from 2 MiB on in huge pages, where Linux gives them to who asks: a decode reads all weights, and page
    # tables with them (benchmarks/engine/huge_pages.py).
    "THP_MEM_ALLOC_ENABLE": "1",
}
os.environ.update(DEFAULTS | os.environ)

Loaded = TypeVar("Loaded")


def apart(load: Callable[[], Loaded]) -> Loaded:
    """``load()``, in a thread that ends with it. OpenMP keeps threads for each thread that has used it as long as that
    one lives, and while all of them are more than the cores those that wait sleep at once: an engine is loaded in one
    thread, and its steps run in another. Raises what ``load`` does."""
    with ThreadPoolExecutor(1, "load") as thread:
        return thread.submit(load).result()


def cpu_count() -> int:
    """Cores that this process may use."""
    return usable_cores()
