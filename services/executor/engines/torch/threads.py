"""CPU threads of the torch engine. Import this before torch: OpenMP reads its environment when it is loaded."""

import os

# A waiting OpenMP thread spins for milliseconds by default. The engine shares its cores with the event loop, the bus
# and the gateway, and a spinning thread keeps the core that the preempted one needs: one busy process beside two
# engine threads made a step 10 times as slow. Some microseconds of spinning keep nearly all of the gain.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
