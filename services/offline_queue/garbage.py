"""When this process looks for reference cycles."""

from __future__ import annotations

import gc

ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000


def collect_seldom() -> None:
    """A plan of 256 requests allocates and frees thousands of objects, none in a cycle. With Python's threshold of 700
    a collection would interrupt every plan, and in one of a hundred walk over all requests that wait: 0.1 s for
    100,000. Call once at start, when all modules are there; what exists then is never collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
