"""The offline orders by name, and their knobs."""

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.named import named
from shared.scheduling.orders.offline.blend import BlendOrder
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.kv_aware import KvAwareOrder
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.psm_fair import PsmFairOrder

DEFAULT_BLOCK_SIZE = 16  # tokens; what executors' KV caches have by default, but for vllm


class OfflineOrderKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of all of them."""

    utility_ratio: Annotated[
        float,
        Meta(
            ge=0, le=1, description="psm-fair, kv-aware: share of offline requests chosen by shared prefix, not by age"
        ),
    ] = 0.9  # u of HyGen Alg. 4, which gives none: nearly all of psm's cache hits (docs/benchmarks.md)
    sample_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="blend: share of the offline requests of unknown output length that run first, for an estimate",
        ),
    ] = 0.01  # p of BlendServe, section 5.1
    split_threshold: Annotated[
        float,
        Meta(
            ge=0,
            description="blend: prompt tokens that may be computed again so that requests with a common prefix are "
            "ordered each by its own density, as a share of the tokens below that prefix",
        ),
    ] = 0.01


_MAKERS: dict[str, Callable[[OfflineOrderKnobs, int, Iterator[float]], OfflineOrder]] = {
    "fcfs": lambda knobs, block_size, numbers: FcfsOrder(),
    "psm": lambda knobs, block_size, numbers: PsmOrder(block_size),
    "psm-fair": lambda knobs, block_size, numbers: PsmFairOrder(block_size, knobs.utility_ratio, numbers),
    "kv-aware": lambda knobs, block_size, numbers: KvAwareOrder(block_size, knobs.utility_ratio, numbers),
    "blend": lambda knobs, block_size, numbers: BlendOrder(block_size, knobs.sample_share, knobs.split_threshold),
    "none": lambda knobs, block_size, numbers: FcfsOrder(),  # whoever serves none still keeps them
}
OFFLINE_ORDERS = tuple(_MAKERS)


def make_offline_order(
    name: str, knobs: OfflineOrderKnobs, numbers: Iterator[float], block_size: int = DEFAULT_BLOCK_SIZE
) -> OfflineOrder:
    """An empty order by name. ``numbers``: endless, uniform in [0, 1), for what is drawn; ``block_size``: tokens of the
    executors' KV blocks, by which prompts are compared. Raises ValueError that lists the known names, or for a bad
    knob or block size."""
    return named(_MAKERS, name, "offline order")(knobs, block_size, numbers)
