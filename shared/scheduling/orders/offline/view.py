"""What an offline order sees of the executor and the step that it is asked for."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.kv.request_cache import NO_CACHE, RequestCache
from shared.scheduling.request import Request


def nobody(request: Request) -> bool:
    """Is passed."""
    return False


@dataclass(frozen=True, slots=True)
class OfflineView:
    """Taken when a step comes to its waiting offline requests. An order takes from it what it needs and changes nothing
    of it. ``features`` and the running requests are not copied: they are as they stand whenever they are looked at.

    ``reader``: the executor's id, None for nobody in particular; ``num_free_blocks``: KV blocks that are left to the
    step; ``budget_ms``: what the whole step may take; ``model``: by which latency model, None where none is known;
    ``features``: of what the step has so far; the two kinds of requests that have KV on the executor, in the step or
    not; ``is_passed``: who is left out of what the order shows, before anything else about it counts, to be asked of
    each in turn.
    """

    reader: str | None = None
    cache: RequestCache = NO_CACHE
    num_free_blocks: int = 0
    budget_ms: float = math.inf
    model: LatencyModel | None = None
    features: BatchFeatures = field(default_factory=BatchFeatures)
    running_online: Collection[Request] = ()
    running_offline: Collection[Request] = ()
    is_passed: Callable[[Request], bool] = nobody


NOBODY = OfflineView()
OfflineQueue: TypeAlias = Callable[[OfflineView], Iterator[Request]]  # what may enter, next first, read lazily


def no_queue(view: OfflineView) -> Iterator[Request]:
    """Of a place where no offline request waits."""
    return iter(())
