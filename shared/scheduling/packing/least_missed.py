"""Which offline request loses its KV for others: the one whose KV is missed the least."""

from collections.abc import Iterable, Sequence
from itertools import islice

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable

MAX_LOOKS = 64  # at requests, the latest to start first


def least_missed(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """Of requests with KV, the one of which the fewest computed tokens are lost among those that free as many blocks as
    are needed; where none does, the one that frees the most, so that few lose theirs. Ties to the latest; None where
    there is none."""
    return min(islice(latest_first, MAX_LOOKS), key=lambda each: _missed(each, num_needed_blocks), default=None)


def _missed(request: Request, num_needed_blocks: int) -> tuple[bool, int, int]:
    num_lacking = max(0, num_needed_blocks - request.num_blocks)
    return num_lacking > 0, num_lacking, request.num_computed_tokens


def give_back_least_missed(
    builder: BatchBuilder, table: RequestTable, num_offline_blocks: int, preempted: Sequence[str]
) -> list[str]:
    """As ``give_back_offline_blocks``, but for who loses its KV."""
    lost: list[str] = []
    while builder.num_blocks_left < num_offline_blocks:
        victim = least_missed(_may_lose(table, (*preempted, *lost)), num_offline_blocks - builder.num_blocks_left)
        if victim is None:
            break
        lost.append(victim.request_id)
        num_offline_blocks -= min(victim.num_blocks, num_offline_blocks)
    builder.num_blocks_left = max(0, builder.num_blocks_left - num_offline_blocks)
    return lost


def _may_lose(table: RequestTable, preempted: Sequence[str]) -> Iterable[Request]:
    return (
        request
        for request in reversed(table.running(Kind.OFFLINE).values())
        if request.request_id not in preempted and not (request.is_in_flight or request.is_paused)
    )
