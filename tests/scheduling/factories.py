"""Makers of requests, limits and tables for tests of the core."""

from __future__ import annotations

import itertools
import math

from shared.latency.linear import LinearLatencyModel
from shared.scheduling.batch import Limits, Policy, Schedule
from shared.scheduling.online_order import OnlineOrder
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import two_phase_schedule
from shared.scheduling.table import RequestTable

_numbers = itertools.count()

MODEL = LinearLatencyModel(10.0, 0.5, 0.001, 0.0, 0.0, 0.5, 1.0)
LIMITS = Limits(block_size=16, num_blocks=1000, max_num_batched_tokens=512, max_num_seqs=64)
UNBOUNDED = Policy(math.inf)


def make_request(
    request_id: str = "",
    kind: Kind = Kind.ONLINE,
    prompt: int = 100,
    output: int = 0,
    computed: int = 0,
    blocks: int | None = None,
    max_tokens: int = 50,
    client: str = "",
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
    )


def make_decode(request_id: str = "", kind: Kind = Kind.ONLINE, context: int = 100) -> Request:
    """A running request whose next step decodes."""
    return make_request(request_id, kind, prompt=context, output=1, computed=context)


def make_table(*requests: Request, order: OnlineOrder | None = None) -> RequestTable:
    table = RequestTable(order)
    for request in requests:
        table.add(request)
    return table


def plan(
    table: RequestTable,
    offline: list[Request] | None = None,
    limits: Limits = LIMITS,
    policy: Policy = UNBOUNDED,
    num_free_blocks: int | None = None,
) -> Schedule:
    """``two_phase_schedule`` where nothing is shared."""
    held = table.num_blocks(Kind.ONLINE) + table.num_blocks(Kind.OFFLINE)
    free = limits.num_blocks - held if num_free_blocks is None else num_free_blocks
    offline_blocks = table.num_blocks(Kind.OFFLINE)
    return two_phase_schedule(table, offline or [], free, offline_blocks, limits, policy, MODEL)


def tokens(schedule: Schedule) -> dict[str, int]:
    return {entry.request_id: entry.num_scheduled_tokens for entry in schedule.entries}
