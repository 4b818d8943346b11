"""Makers of requests, limits and tables for tests of the core."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.kv.request_cache import NOTHING, Found
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.orders.online.order import OnlineOrder
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.two_phase import TwoPhasePacking
from shared.scheduling.planning.mirror import ExecutorMirror
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.scheduling.table import RequestTable

_numbers = itertools.count()

MODEL = LinearLatencyModel(10.0, 0.5, 0.001, 0.0, 0.0, 0.5, 1.0)
EXACT = LinearLatencyModel(8.0, 0.5, 1 / 64, 0.0, 0.0, 0.5, 1.0, 1 / 64)  # of whose times no sum is rounded
LIMITS = Limits(block_size=16, num_blocks=1000, max_num_batched_tokens=512, max_num_seqs=64)
UNBOUNDED = Policy(math.inf)
TWO_PHASE = TwoPhasePacking()


def make_request(
    request_id: str = "",
    kind: Kind = Kind.ONLINE,
    prompt: int = 100,
    output: int = 0,
    computed: int = 0,
    blocks: int | None = None,
    max_tokens: int = 50,
    client: str = "",
    weight: float = 1.0,
) -> Request:
    """A request with blocks for what is computed, unless said otherwise."""
    return Request(
        request_id or f"{kind.name.lower()}-{next(_numbers)}",
        kind,
        num_tokens=prompt + output,
        max_total_tokens=prompt + max_tokens,
        num_computed_tokens=computed,
        num_blocks=-(-computed // 16) if blocks is None else blocks,
        client_id=client,
        client_weight=weight,
    )


def make_decode(request_id: str = "", kind: Kind = Kind.ONLINE, context: int = 100) -> Request:
    """A running request whose next step decodes."""
    return make_request(request_id, kind, prompt=context, output=1, computed=context)


def make_table(*requests: Request, order: OnlineOrder | None = None) -> RequestTable:
    table = RequestTable(order)
    for request in requests:
        table.add(request)
    return table


def make_mirror(limits: Limits = LIMITS, **strategy: str) -> ExecutorMirror:
    """Of an executor that is told of no tokens."""
    return ExecutorMirror(limits, Strategy.of(**strategy), lambda request_id: ())


def step_state(
    table: RequestTable,
    limits: Limits = LIMITS,
    policy: Policy = UNBOUNDED,
    num_free_blocks: int | None = None,
    pace: Pace | None = None,
) -> StepState:
    """Nothing is shared. All blocks that no request holds are free, unless said otherwise."""
    offline = table.num_blocks(Kind.OFFLINE)
    free = limits.num_blocks - table.num_blocks(Kind.ONLINE) - offline if num_free_blocks is None else num_free_blocks
    num_offline_blocks = offline - table.num_blocks_in_flight(Kind.OFFLINE)
    return StepState(table, free, num_offline_blocks, limits, policy, MODEL, pace or Pace())


def plan(
    table: RequestTable,
    offline: list[Request] | None = None,
    limits: Limits = LIMITS,
    policy: Policy = UNBOUNDED,
    num_free_blocks: int | None = None,
) -> Schedule:
    """In two phases."""
    return TWO_PHASE.schedule(step_state(table, limits, policy, num_free_blocks), queue_of(offline or []))


class CacheOf:
    """Has so much of these requests."""

    is_by_kind = False

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = found

    def found(self, request: Request) -> Found:
        return self._found.get(request.request_id, NOTHING)

    def hashes(self, request: Request) -> Sequence[bytes]:
        return ()


def half_cached(requests: Iterable[Request]) -> CacheOf:
    """The first half of each, in whole free blocks."""
    return CacheOf({each.request_id: Found(16 * ((each.num_tokens - 1) // 32)) for each in requests})


def queue_of(requests: Iterable[Request]) -> OfflineQueue:
    """Always the same, whatever the step."""
    return lambda view: (request for request in requests if not view.is_passed(request))


def tokens(schedule: Schedule) -> dict[str, int]:
    return {entry.request_id: entry.num_scheduled_tokens for entry in schedule.entries}


def features_of(entries: list[ScheduledRequest], by_id: dict[str, Request]) -> BatchFeatures:
    features = BatchFeatures()
    for entry in entries:
        request = by_id[entry.request_id]
        features.add_scheduled(entry.num_scheduled_tokens, request.num_computed_tokens)
    return features


prompt_lengths = st.one_of(
    st.integers(1, 300), st.integers(1, 18).flatmap(lambda blocks: st.sampled_from([16 * blocks, 16 * blocks - 1]))
)
computed_lengths = st.one_of(st.just(0), prompt_lengths)  # of those that have not computed all

held_requests = st.builds(
    lambda kind, prompt, computed, is_decode: (
        make_decode("", kind, context=prompt)
        if is_decode
        else make_request("", kind, prompt=prompt + 1, computed=min(computed, prompt))
    ),
    st.sampled_from(Kind),
    prompt_lengths,
    computed_lengths,
    st.booleans(),
)  # drawn, without ids


def _held_offline(decodes: bool, prompt: int, computed: int, kept_share: float | None) -> Request:
    """``kept_share``: of its blocks, while it is paused."""
    if decodes:
        made = make_decode(kind=Kind.OFFLINE, context=prompt)
    else:
        made = make_request(kind=Kind.OFFLINE, prompt=prompt + 1, computed=min(computed, prompt))
    if kept_share is not None and made.is_running:
        made.num_kept_blocks = int(kept_share * made.num_blocks)
        made.num_missing_slots = prompt % 17
    return made


held_offline = st.builds(
    _held_offline,
    st.booleans(),
    prompt_lengths,
    computed_lengths,
    st.sampled_from([None, None, 0.0, 0.5, 1.0]),
)  # drawn, without ids; some of them paused
