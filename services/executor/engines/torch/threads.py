"""CPU threads of the torch engine. Import this before torch: OpenMP reads its environment when it is loaded."""

import os

# A waiting OpenMP thread spins for milliseconds by default. The engine shares its cores with the event loop, the bus
# and the gateway, and a spinning thread keeps the core that the preempted one needs: one busy process beside two
# engine threads made a step 10 times as slow. Some microseconds of spinning keep nearly all of the gain.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Else libgomp spins a tenth of that where its threads outnumber the cores, as they do for good once a second thread of
# the process has used OpenMP: the engine is loaded in one thread, and its steps run in another. Each small operation
# then wakes a sleeping thread: a chunk of 512 tokens took 1.35 times as long on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "active")


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
