"""Which offline requests a strict executor asks for: offline request migration of OOCO (section 3.4.3, Alg. 1)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.table import RequestTable

AWAITED_S = 1.0  # what was asked for and has not come by then is not coming: a strict executor asks anew
SHORTEST = 0  # as a preference: every length is nearer the shorter it is


@dataclass(frozen=True, slots=True)
class Node:
    """A strict executor as a pull is decided. ``batch``: B, what its last step decoded; ``has_all``: all offline
    requests that it holds were in it; ``num_free_tokens``: KV that it can give to others yet; ``num_free_seqs``:
    requests that a step can have yet; ``saturated_size``: bs_sat of its latency model."""

    batch: BatchFeatures
    has_all: bool
    model: LatencyModel
    saturated_size: int
    num_free_tokens: int
    num_free_seqs: int

    def latency_ms(self, num_requests: int, num_tokens: int) -> float:
        """L of B with so many more decodes, each over ``num_tokens`` KV tokens."""
        return self.model.predict_ms(self.batch.decodes(num_requests, num_tokens))

    def longest(self, num_requests: int, limit_ms: float) -> int:
        """The most tokens that each of so many newcomers may have so that L <= S and U_mem <= 1; 0 where they fit at no
        length."""
        if num_requests > self.num_free_seqs:
            return 0
        most = self.num_free_tokens // num_requests
        return bisect_right(range(1, most + 1), limit_ms, key=lambda tokens: self.latency_ms(num_requests, tokens))

    def most(self, num_tokens: int, limit_ms: float) -> int:
        """How many newcomers of so many tokens fit."""
        count = min(self.num_free_seqs, self.num_free_tokens // num_tokens)
        return bisect_right(range(1, count + 1), limit_ms, key=lambda count: self.latency_ms(count, num_tokens))


@dataclass(frozen=True, slots=True)
class Preference:
    """Pref of Alg. 1: so many requests, as near to ``num_tokens`` as there are. One has ``most_tokens`` at the most; of
    the shortest, all together do."""

    num_tokens: int
    num_requests: int
    most_tokens: int


def last_batch(table: RequestTable, entries: Iterable[ScheduledRequest]) -> tuple[BatchFeatures, bool]:
    """Alg. 1 line 1, the review of the last step's mix decoding selection, once the step has ended: its requests that
    go on, with the contexts of their next tokens, and whether all offline requests that are here are among them. One
    that has lost its KV here, and is to have it back first, is not; one that is about to leave does not count."""
    batch, scheduled = BatchFeatures(), set[str]()  # membership only
    for entry in entries:
        scheduled.add(entry.request_id)
        request = table.running(entry.kind).get(entry.request_id)
        if request is not None and request.num_remaining_tokens == 1 and not request.is_held:
            batch.add_decode(request.num_tokens)
    here = table.running(Kind.OFFLINE).values()
    has_all = all(request.is_held or request.request_id in scheduled for request in here)
    return batch, has_all and not table.waiting(Kind.OFFLINE)


def preference(node: Node, limit_ms: float, margin: float) -> Preference | None:
    """Alg. 1: what a strict executor asks a relaxed one for; None for nothing (line 16). ``limit_ms``: S, also while it
    has no online request: some will come; ``margin``: the share of it that has to be left, which the text asks for and
    the lines do not.

    - Line 2: L(B) leaves the margin of S, and all requests are in B.
    - Lines 3 to 5: a batch that computing binds gains nothing by being larger. It fills the memory: the longest that
      fits S and the memory.
    - Line 7: whether some requests more saturate the batch within S, as many as are missing, if they are short. The
      text speaks of a group, and so does this; in the memory, too, or it could not come.
    - Line 8: the longest that each of that group may be.
    - Lines 9 and 10: the shortest, so that the batch becomes as large as can be; as many as fit if they are as long as
      B's in the mean, or one where B is empty.
    """
    if not node.has_all or node.latency_ms(0, 0) > (1.0 - margin) * limit_ms:
        return None
    longest = node.longest(1, limit_ms)
    if longest == 0:
        return None
    size = node.batch.decode_requests
    if size >= node.saturated_size:
        return Preference(longest, 1, longest)
    num_missing = node.saturated_size - size
    of_group = node.longest(num_missing, limit_ms)
    if of_group:
        return Preference(of_group, num_missing, longest)
    mean_tokens = math.ceil(node.batch.decode_kv_tokens / size) if size else 0
    num_requests = node.most(mean_tokens, limit_ms) if mean_tokens else 0
    if num_requests == 0:
        return Preference(SHORTEST, 1, longest)
    return Preference(SHORTEST, num_requests, num_requests * mean_tokens)


def nearest(num_tokens: int, candidates: Sequence[tuple[str, int]], num_requests: int, most_tokens: int) -> list[str]:
    """Alg. 1 line 14: which of a giver's offline requests that decode, (request_id, tokens), are to move, by what the
    taker prefers: the nearest first, ties by their order. Together they have no more tokens than were wanted, so that
    they do not break S however long they are; who would go beyond that is passed over. The first may go alone."""
    near = sorted(candidates, key=lambda each: abs(each[1] - num_tokens))
    near = [each for each in near if each[1] <= most_tokens]
    left = most_tokens if num_tokens == SHORTEST else num_requests * num_tokens
    if near and near[0][1] > left:
        return [near[0][0]]
    chosen: list[str] = []
    for request_id, tokens in near:
        if len(chosen) < num_requests and tokens <= left:
            chosen.append(request_id)
            left -= tokens
    return chosen
