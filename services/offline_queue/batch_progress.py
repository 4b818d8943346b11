"""Which lines of one batch have their result, and what the results add up to."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterable
from dataclasses import replace
from typing import TypeGuard

from services.offline_queue.batch_lines import BatchLine
from services.offline_queue.batch_records import BatchCounts
from shared.protocol.messages import FinishReason, OfflineResult

ABSENT, OPEN, DONE = range(3)
COMPLETED_REASONS = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class BatchProgress:
    """A few bytes per line; the first result of a line counts, whoever delivers it."""

    def __init__(self, batch_id: str, lines: list[tuple[int, int]]) -> None:
        """``lines``: (line, num_prompt_tokens) of every request."""
        size = max((line for line, _ in lines), default=0) + 1
        self._batch_id = batch_id
        self._states = bytearray(size)
        self._prompt_tokens = array("I", bytes(4 * size))
        self._sequences = array("Q", bytes(8 * size))  # of the stored request; 0 where not known
        self._done_requests: list[int] = []
        self.num_open = len(lines)
        self.total = len(lines)
        self.counts = BatchCounts()
        for line, num_prompt_tokens in lines:
            self._states[line] = OPEN
            self._prompt_tokens[line] = num_prompt_tokens

    @classmethod
    async def of_lines(cls, batch_id: str, lines: AsyncIterable[BatchLine]) -> BatchProgress:
        return cls(batch_id, [(line.line, line.num_prompt_tokens) async for line in lines])

    def add_request(self, line: int, sequence: int) -> bool:
        """A stored request was read; True where it still has to run."""
        self._sequences[line] = sequence
        if self.is_open(line):
            return True
        self._done_requests.append(sequence)
        return False

    def add_result(self, line: int, result: OfflineResult) -> bool:
        """False where the line is none of the batch, or has a result."""
        if not self.is_open(line):
            return False
        self._states[line] = DONE
        self.num_open -= 1
        if self._sequences[line]:
            self._done_requests.append(self._sequences[line])
        self.counts = add_to(self.counts, result, self._prompt_tokens[line])
        return True

    def is_open(self, line: int) -> bool:
        """It is a line of the batch, and has no result."""
        return line < len(self._states) and self._states[line] == OPEN

    def take_done_requests(self) -> list[int]:
        """Sequences of stored requests that are needed no more, each given once."""
        taken, self._done_requests = self._done_requests, []
        return taken

    def open_request_ids(self) -> list[str]:
        """Requests without a result, in the order of their lines."""
        return [f"{self._batch_id}.{line}" for line, state in enumerate(self._states) if state == OPEN]


def is_completed(result: OfflineResult | None) -> TypeGuard[OfflineResult]:
    """It belongs into the output file, not the error file."""
    return result is not None and result.finish_reason in COMPLETED_REASONS


def add_to(counts: BatchCounts, result: OfflineResult | None, num_prompt_tokens: int) -> BatchCounts:
    """The counts with one line more; only completed requests count tokens."""
    if not is_completed(result):
        return replace(counts, failed=counts.failed + 1)
    return replace(
        counts,
        completed=counts.completed + 1,
        input_tokens=counts.input_tokens + num_prompt_tokens,
        cached_tokens=counts.cached_tokens + result.num_cached_tokens,
        output_tokens=counts.output_tokens + len(result.output_token_ids),
    )
