"""Which offline requests lose their KV to online ones where blocks are short, by rules that a schedule names: packing
chooses by them, and so does the allocation of blocks where the packing's counts were too hopeful."""

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate, islice, pairwise
from operator import attrgetter

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import OFFLINE, Request
from shared.scheduling.schedule import LATEST
from shared.scheduling.table import RequestTable

MAX_LOOKS = 64  # at requests, the latest to start first
MAX_SET = 8  # requests that are chosen together
LEAST_MISSED, LONGEST, FEWEST = "least-missed", "longest", "fewest"

_num_blocks = attrgetter("num_blocks")

Rule = Callable[[Iterable[Request], int], Request | None]
"""Of requests with KV, the latest to start first, who loses it next where so many blocks are needed yet; None where
there is none."""


def latest(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """HyGen Alg. 2 lines 14-17: from the tail."""
    return next(iter(latest_first), None)


def least_missed(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """The one of which the fewest computed tokens are lost among those that free as many blocks as are needed; where
    none does, the one that frees the most, so that few lose theirs. Ties to the latest."""
    return min(islice(latest_first, MAX_LOOKS), key=lambda each: _missed(each, num_needed_blocks), default=None)


def longest(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """OOCO section 3.4.1, where computing is what decodes wait for: the batch is to stay large. Ties to the latest."""
    return max(latest_first, key=attrgetter("num_computed_tokens"), default=None)


def fewest(latest_first: Iterable[Request], num_needed_blocks: int) -> Request | None:
    """OOCO section 3.4.1, where memory is: of the smallest sets that free as many blocks as are needed, that of the
    least to compute again, to the block; the largest of that set. Sets over ``MAX_SET`` are begun with the largest of
    all; where all together do not free enough, so is what there is."""
    requests = sorted(latest_first, key=_num_blocks, reverse=True)
    freed = accumulate(map(_num_blocks, requests))
    count = next((n for n, total in enumerate(freed, start=1) if total >= num_needed_blocks), None)
    if count is None or count > MAX_SET:
        return requests[0] if requests else None
    return max(smallest_set(requests, count, num_needed_blocks), key=_num_blocks)


def smallest_set(requests: Sequence[Request], count: int, num_needed_blocks: int) -> list[Request]:
    """Of so many of them, of which some are enough, those that free the fewest blocks from ``num_needed_blocks`` on:
    sums that are possible with each number of requests, as bits, from request to request."""
    sums = [1] + [0] * count
    before: list[list[int]] = []
    for request in requests:
        before.append(sums)
        sums = [sums[0], *(kept | fewer << request.num_blocks for fewer, kept in pairwise(sums))]
    enough = sums[count] >> num_needed_blocks
    assert enough, f"{count} requests do not free {num_needed_blocks} blocks"
    total = num_needed_blocks + (enough & -enough).bit_length() - 1
    chosen: list[Request] = []
    for request, possible in zip(reversed(requests), reversed(before), strict=True):
        if not possible[count] >> total & 1:
            chosen.append(request)
            count, total = count - 1, total - request.num_blocks
    return chosen


GIVING_WAY: dict[str, Rule] = {LATEST: latest, LEAST_MISSED: least_missed, LONGEST: longest, FEWEST: fewest}


def who_gives_way(rule: str, table: RequestTable, spared: Container[str], num_needed_blocks: int) -> Request | None:
    """The next offline request by that rule, of those that may lose their KV: not ``spared``, in no step, not paused;
    None where there is none."""
    may_lose = (
        request
        for request in reversed(table.running(OFFLINE).values())
        if request.request_id not in spared and not (request.is_in_flight or request.is_paused)
    )
    return GIVING_WAY[rule](may_lose, num_needed_blocks)


def give_back_offline_blocks(
    builder: BatchBuilder, table: RequestTable, num_offline_blocks: int, preempted: Sequence[str], rule: str = LATEST
) -> list[str]:
    """HyGen Alg. 2 lines 14-17: where the online phase ate into M_off, offline requests lose their KV; what the others
    hold is no longer free for phase two. Returns what it preempted."""
    lost: list[str] = []
    spared = set(preempted)  # membership only
    while builder.num_blocks_left < num_offline_blocks:
        num_needed_blocks = num_offline_blocks - builder.num_blocks_left
        victim = who_gives_way(rule, table, spared, num_needed_blocks)
        if victim is None:
            break
        lost.append(victim.request_id)
        spared.add(victim.request_id)
        num_offline_blocks -= min(victim.num_blocks, num_offline_blocks)
    builder.num_blocks_left = max(0, builder.num_blocks_left - num_offline_blocks)
    return lost


def _missed(request: Request, num_needed_blocks: int) -> tuple[bool, int, int]:
    num_lacking = max(0, num_needed_blocks - request.num_blocks)
    return num_lacking > 0, num_lacking, request.num_computed_tokens
