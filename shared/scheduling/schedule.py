"""What one step runs."""

import math

import msgspec

from shared.bounds import Positive
from shared.scheduling.credit import NO_SHARE, OnlineShare
from shared.scheduling.request import Kind

LATEST = "latest"  # the rule by which most schedules choose who gives way


class ScheduledRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry (r, l, t_req) of HyGen Alg. 1. A step has hundreds: a struct is made in a third of the time that a
    frozen dataclass takes."""

    request_id: str
    kind: Kind
    num_scheduled_tokens: Positive  # 1 for a decode, the chunk's length for a prefill


class Schedule(msgspec.Struct, frozen=True):
    """What one step runs. The entries are in scheduling order, online first."""

    entries: list[ScheduledRequest]
    preempted: list[str]  # lose their KV before the step (bidirectional: offline ones are paused), in this order
    latency_ms: float  # predicted for the whole batch
    num_dropped: int = 0  # entries of a plan that no longer fitted
    hit_time_limit: bool = False  # an online request stayed out because the step would have taken too long
    share: OnlineShare = NO_SHARE
    spare_ms: float = math.inf  # what is left of the time that the step may take on account of offline work
    gives_way: str = LATEST  # who, where its blocks turn out to be short: a rule of ``packing.giving_way``
