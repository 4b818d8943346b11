"""The offline orders by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shared.named import named
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.psm_fair import PsmFairOrder

DEFAULT_BLOCK_SIZE = 16  # tokens; what executors' KV caches have by default, but for vllm

_MAKERS: dict[str, Callable[[int, float, Iterator[float]], OfflineOrder]] = {
    "fcfs": lambda block_size, utility_ratio, numbers: FcfsOrder(),
    "psm": lambda block_size, utility_ratio, numbers: PsmOrder(block_size),
    "psm-fair": PsmFairOrder,
}
OFFLINE_ORDERS = tuple(_MAKERS)


def make_offline_order(
    name: str, utility_ratio: float, numbers: Iterator[float], block_size: int = DEFAULT_BLOCK_SIZE
) -> OfflineOrder:
    """An empty order by name. ``utility_ratio`` and ``numbers`` are those of ``PsmFairOrder``; the other orders do
    without. ``block_size``: tokens of the executors' KV blocks, by which prompts are compared. Raises ValueError that
    lists the known names, or for a bad ratio or block size."""
    return named(_MAKERS, name, "offline order")(block_size, utility_ratio, numbers)
