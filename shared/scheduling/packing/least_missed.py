"""Which offline request loses its KV for others: the one whose KV is missed the least."""

from collections.abc import Iterable, Sequence
from itertools import islice

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable

MAX_LOOKS = 64  # at requests, the latest to start first


def least_missed(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """Of requests with KV, the one of which the fewest computed tokens are lost for each block that is needed, ties to
    the latest; None where there is none. A large one for a few blocks is a waste, and so are many small ones."""
    looked_at = islice(latest_first, MAX_LOOKS)
    return min(
        looked_at, key=lambda each: each.num_computed_tokens / min(each.num_blocks, num_needed_blocks), default=None
    )


def give_back_least_missed(
    builder: BatchBuilder, table: RequestTable, num_offline_blocks: int, preempted: Sequence[str]
) -> list[str]:
    """As ``give_back_offline_blocks``, but for who loses its KV."""
    num_needed = num_offline_blocks - builder.num_blocks_left
    victims: list[Request] = []
    while (num_missing := num_needed - _num_blocks(victims)) > 0:
        lost = [victim.request_id for victim in victims]
        victim = least_missed(_may_lose(table, (*preempted, *lost)), num_missing)
        if victim is None:
            break
        victims.append(victim)
    victims = _without_the_superfluous(victims, num_needed)
    num_left = num_offline_blocks - min(_num_blocks(victims), num_offline_blocks)
    builder.num_blocks_left = max(0, builder.num_blocks_left - num_left)
    return [victim.request_id for victim in victims]


def _without_the_superfluous(victims: list[Request], num_needed_blocks: int) -> list[Request]:
    """Those that were taken before a larger one keep their KV where that one has enough blocks, whoever has the most
    tokens first."""
    num_blocks, kept = _num_blocks(victims), set[str]()
    for victim in sorted(victims, key=lambda each: -each.num_computed_tokens):
        if num_blocks - victim.num_blocks >= num_needed_blocks:
            num_blocks -= victim.num_blocks
            kept.add(victim.request_id)
    return [victim for victim in victims if victim.request_id not in kept]


def _num_blocks(victims: Iterable[Request]) -> int:
    return sum(victim.num_blocks for victim in victims)


def _may_lose(table: RequestTable, preempted: Sequence[str]) -> Iterable[Request]:
    return (
        request
        for request in reversed(table.running(Kind.OFFLINE).values())
        if request.request_id not in preempted and not (request.is_in_flight or request.is_paused)
    )
