"""Between an executor and the offline-queue: the plan of each step, and what the step became."""

import enum
from collections.abc import Sequence

import msgspec

from shared.bounds import Amount, Count, Finite
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.scheduling.credit import NO_SHARE, OnlineShare
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.orders.online.order import ClientCounters
from shared.scheduling.packing.pace import Pace
from shared.scheduling.request import Request
from shared.scheduling.schedule import ScheduledRequest


class ReaderCounts(msgspec.Struct, frozen=True, array_like=True):
    """How many offline requests, waiting and running anywhere, will read blocks of KV: rc of Echo (section 4.2). They
    hold until they are told otherwise, all of them until somebody begins to tell anew: ``since_s`` is another then. Of
    those told since then this is the ``number``-th, from 0 on: one that is lost leaves a gap."""

    since_s: Finite  # when that was, by the scheduler's clock
    number: Count
    entering: list[list[tuple[Count, Count]]]  # for each that is admitted: (blocks of its prompt up to here, readers)
    changes: list[tuple[bytes, Count]]  # (hashes of blocks, one behind the other; readers of each)


class StepPlan(msgspec.Struct, frozen=True):
    """Q_recv: the plan for one step of one incarnation (``epoch``), made pipeline depth steps before it starts. Raises
    ValueError where a request is in it twice."""

    executor_id: str
    epoch: str
    step: Count
    entries: list[ScheduledRequest]  # online first, then offline, each in scheduling order
    admitted: list[GenerateRequest]  # offline requests that enter with this plan
    preempted: list[str]  # whose KV is dropped before the step; offline ones are paused where the KV policy can
    latency_ms: Amount  # predicted for the whole batch
    share: OnlineShare = NO_SHARE
    readers: ReaderCounts | None = None  # where the executor's KV eviction goes by them
    wants_all: bool = False  # the scheduler has missed something: the next step message is to tell all that is held

    def __post_init__(self) -> None:
        _check_each_once(self.entries, "entry in a plan")


class PlanSource(enum.StrEnum):
    """Where the batch of a step came from."""

    PLAN = "plan"  # the offline-queue's plan, reconciled
    LOCAL = "local"  # a plan was due and had not come: planned here
    IDLE = "idle"  # work arrived while nothing ran, so no plan was due: planned here


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that left the executor since the message before."""

    request_id: str
    finish_reason: FinishReason
    num_output_tokens: Count = 0  # of the last choice, where it has several


class StepStarted(msgspec.Struct, frozen=True):
    """Q_send: the step that the executor starts now, and all that it holds. ``idle`` means no step starts: the executor
    waits for work, and a plan for ``step`` may come at any time. ``num_fresh`` counts the online requests that wait and
    have never run: perhaps thousands, so ``states`` has only those of them that no message before had."""

    executor_id: str
    epoch: str
    step: Count
    source: PlanSource
    idle: bool
    entries: list[ScheduledRequest]
    states: list[Request]
    ended: list[EndedRequest]
    num_free_blocks: Count
    client_counters: ClientCounters | None = None  # of an online order that counts by client
    in_flight: list[list[ScheduledRequest]] = []  # earlier steps that have not ended, oldest first
    pace: Pace = Pace()  # for the step after the one that starts; deadlines are on its clock
    cache: CacheChanges = CacheChanges()  # of the prefix cache, since the message before
    num_fresh: Count | None = None
    num_wanted_blocks: Count = 0  # of the free ones: see StepState, as the next
    num_reserved_blocks: Count = 0
    lacks_readers: bool = False  # some ReaderCounts were lost: they are to be told anew

    def __post_init__(self) -> None:
        _check_each_once(self.states, "state")


class CacheTold(msgspec.Struct, frozen=True):
    """What a StepStarted tells of the prefix cache, for those who need no more of it."""

    executor_id: str
    epoch: str
    cache: CacheChanges = CacheChanges()


def _check_each_once(told: Sequence[ScheduledRequest | Request], what: str) -> None:
    if len({each.request_id for each in told}) < len(told):
        raise ValueError(f"a request has one {what}")
