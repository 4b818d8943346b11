"""By what the executor's KV cache holds: the offline pool of Echo (section 6, "Online queue and offline pool")."""

from collections.abc import Iterator

from shared.scheduling.orders.offline.length_buckets import LengthBuckets
from shared.scheduling.orders.offline.psm_fair import PsmFairOrder


class KvAwareOrder(PsmFairOrder):
    """Echo section 6: of the prompts about as long as those that run, first what shares a prefix that the executor has.

    The paper lets a request that shares nothing wait for as long as others share. Here, as in HyGen Alg. 4, each next
    request is the most stale one with probability 1 - ``utility_ratio``. What it shares with others is then cached, so
    that these come after it: it leads its reader as any other does.
    """

    def __init__(self, block_size: int, utility_ratio: float, numbers: Iterator[float]) -> None:
        """As ``PsmFairOrder``."""
        super().__init__(block_size, utility_ratio, numbers, LengthBuckets(block_size), follows_age=True)
