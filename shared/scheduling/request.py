"""A request as the scheduler sees it: counts, no text and no tokens."""

import enum
import math
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import MOST, Amount, Count, Moment, Weight

HELD = -1  # in the place of a step's tokens
InFlight = Annotated[int, Meta(ge=HELD, le=MOST)]


class Kind(enum.IntEnum):
    """The two kinds of work."""

    ONLINE = 0
    OFFLINE = 1


ONLINE, OFFLINE = Kind  # for each token and block: up to Python 3.11 a member is looked up in ten times as long


class Request(msgspec.Struct, array_like=True, gc=False):
    """One request on one executor, or waiting for one.

    ``num_tokens`` counts prompt and output so far; KV exists for the first ``num_computed_tokens`` of them, in
    ``num_blocks`` blocks. A request with blocks is running (or held, or paused); one without is waiting or was
    preempted, and keeps its tokens: preemption loses computed KV, never output. An executor's messages tell its
    requests as they are.
    """

    request_id: str
    kind: Kind
    num_tokens: Count
    max_total_tokens: Count  # prompt plus the most output it may have
    num_computed_tokens: Count = 0
    num_blocks: Count = 0
    client_id: str = ""  # whom fairness by client counts it for; empty for offline requests
    was_admitted: bool = False  # had KV before, so that its prompt is counted already
    num_in_flight_tokens: InFlight = 0  # its share of a step that runs now; 0 where in none; HELD for another executor
    num_kept_blocks: Count | None = None  # set while it is paused: those of its blocks that others cannot take
    num_missing_slots: Count = 0  # KV slots that have to come back from the host first: M^cpu of BROS, in slots
    arrival_s: Amount = 0.0  # unix time, at the gateway; of the whole batch for one of its lines
    deadline_ms: Moment = math.inf  # of the token group that it waits for, on the clock of whoever holds it
    num_group_tokens_left: Count = 1  # of that group, not returned yet: k_i of BROS Alg. 1
    client_weight: Weight = 1.0  # the client's share of service against that of others; the online order remembers it
    num_resumed_tokens: Count | None = None  # of its answer, from the executor that had it before; None where none had
    awaits_first_token: bool = False  # set by a deadline rule to which that matters
    ends_at_limit: bool = False  # nothing ends it before it has max_total_tokens: its length is known

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens whose KV is not computed yet; 1 for a request that decodes."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decode(self) -> bool:
        """Its next step computes one token over KV that is there."""
        return self.num_computed_tokens > 0 and self.num_tokens - self.num_computed_tokens == 1

    @property
    def is_running(self) -> bool:
        return self.num_blocks > 0

    @property
    def is_in_flight(self) -> bool:
        """It is in a step that runs now, or held: neither to be scheduled nor to lose its KV until that ends."""
        return self.num_in_flight_tokens != 0

    @property
    def is_held(self) -> bool:
        """It is about to move to another executor, which reads its KV."""
        return self.num_in_flight_tokens == HELD

    @property
    def is_paused(self) -> bool:
        """Others may take its blocks, and may have: it runs once it has them all again."""
        return self.num_kept_blocks is not None

    @property
    def num_freed_blocks(self) -> int:
        """Blocks that are free once it gives way or ends, and are not now."""
        return self.num_blocks if self.num_kept_blocks is None else 0

    @property
    def num_own_blocks(self) -> int:
        """Blocks that it can go on in; others cannot take them."""
        return self.num_blocks if self.num_kept_blocks is None else self.num_kept_blocks

    def num_new_blocks(self, num_tokens: int, block_size: int) -> int:
        """Blocks to add before ``num_tokens`` more tokens can be computed."""
        kept = self.num_kept_blocks
        num_own_blocks = self.num_blocks if kept is None else kept
        missing = -(-(self.num_computed_tokens + num_tokens) // block_size) - num_own_blocks
        return missing if missing > 0 else 0


def split_decodes(requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
    """Those whose next step ``is_decode``, and the others, each in order."""
    decodes: list[Request] = []
    prefills: list[Request] = []
    for request in requests:
        num_computed = request.num_computed_tokens
        (decodes if num_computed and request.num_tokens - num_computed == 1 else prefills).append(request)
    return decodes, prefills
