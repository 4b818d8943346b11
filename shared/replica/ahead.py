"""A step that begins while the one before it runs: what it stands on, and what undoes it.

It is scheduled over the expected outcome of the step that runs, as a plan is (HyGen section A.1): every chunk is
computed, and every request whose last token is computed has one more, whose value is not known. The engine begins it
when the other has ended, with that one's tokens. A request that ends at its length limit there is not in it; one that
ends otherwise is in it for nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from shared.replica.sequence import LiveSequence
from shared.scheduling.kv.request_cache import RequestCache
from shared.scheduling.packing.pace import Pace
from shared.scheduling.schedule import Schedule
from shared.scheduling.table import RequestTable

Running = list[tuple[LiveSequence, int]]  # what a step runs: each sequence with the tokens that it computes


@dataclass(frozen=True, slots=True)
class ExpectedOutcome:
    """Of the step that runs. ``rows``: those that go on, with what they compute, and whether they gain a token. The
    others stay in flight as they are until their step has ended."""

    rows: list[tuple[LiveSequence, int, bool]]

    @classmethod
    def of(cls, running: Running, leaving: Container[str]) -> ExpectedOutcome | None:
        """None where a request's next token depends on the one that is not known yet. ``leaving``: the ids of those
        that do not go on, whatever the step gives them."""
        rows = []
        for sequence, num_tokens in running:
            request = sequence.request
            if request.request_id in leaving:
                continue
            gains = request.num_computed_tokens + num_tokens == request.num_tokens
            if gains and request.num_tokens + 1 >= request.max_total_tokens and not sequence.has_more_choices:
                continue
            if gains and (sequence.adjusts_logits or sequence.has_more_choices):
                return None
            rows.append((sequence, num_tokens, gains))
        return cls(rows)

    def assume(self) -> None:
        """Have the requests stand as they will when the step has ended."""
        for sequence, num_tokens, gains in self.rows:
            request = sequence.request
            request.num_in_flight_tokens = 0
            request.num_computed_tokens += num_tokens
            request.num_tokens += gains

    def undo(self) -> None:
        """They stand as they are: in flight."""
        for sequence, num_tokens, gains in self.rows:
            request = sequence.request
            request.num_in_flight_tokens = num_tokens
            request.num_computed_tokens -= num_tokens
            request.num_tokens -= gains


@dataclass(frozen=True, slots=True)
class HeldNow:
    """What stays as it is while a step is made ready. ``left``: the ids whose blocks a step in flight writes, though
    their requests have ended."""

    table: RequestTable
    left: Container[str]
    cache: RequestCache
    num_free_blocks: int
    block_size: int

    def can_run_beside(self, schedule: Schedule) -> bool:
        """The step is whole, and takes no more than what is free."""
        if not schedule.entries or schedule.preempted or schedule.num_dropped:
            return False
        num_blocks = 0
        for entry in schedule.entries:
            request = self.table.get(entry.request_id)
            if request is None or request.is_in_flight or entry.request_id in self.left:
                return False
            if request.is_running:
                num_blocks += request.num_new_blocks(entry.num_scheduled_tokens, self.block_size)
            else:
                found = self.cache.found(request)
                num_slots = found.num_tokens + entry.num_scheduled_tokens
                num_blocks += -(-num_slots // self.block_size) - found.num_held_blocks
        return num_blocks <= self.num_free_blocks


@dataclass(frozen=True, slots=True)
class StepAhead:
    """``entering``: who had no KV before it; ``pace`` and ``counts``: as they were before it."""

    expected: ExpectedOutcome
    entering: list[LiveSequence]
    schedule: Schedule
    pace: Pace
    counts: dict[str, int]
