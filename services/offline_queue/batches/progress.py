"""Which lines of one batch have their result, and what the results add up to."""

from array import array
from dataclasses import replace
from typing import TypeGuard

from services.offline_queue.batches.lines import BatchLine
from services.offline_queue.batches.records import BatchCounts
from services.offline_queue.batches.room import PoolRoom
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.scheduling.packed_prompt import TOKEN_BYTES

ABSENT, OPEN, HELD, DONE = range(4)  # held: open, and in the pool
REQUEST_BYTES = 1536  # of a waiting request in memory, beside its prompt
COMPLETED_REASONS = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class BatchProgress:
    """A few bytes per line; the first result of a line counts, whoever delivers it. ``held_bytes``: about what the
    open requests that were handed to the pool take there; ``open_tokens``: prompts and longest answers of all open
    ones."""

    def __init__(self, batch_id: str, room: PoolRoom) -> None:
        """``room``: what it holds is a part of what is held there, until ``take_held``."""
        self.batch_id = batch_id
        self._room = room
        self.total = 0
        self.num_open = 0
        self.num_held = 0
        self.held_bytes = 0
        self.open_tokens = 0
        self.counts = BatchCounts()
        self._states = bytearray()
        self._prompt_tokens = array("I")
        self._output_tokens = array("I")  # the most that there may be
        self._sequences = array("Q")  # of the stored request; 0 where not known
        self._sampling_bytes: dict[int, int] = {}  # by line, where it has many
        self._failures: dict[int, dict[int, None]] = {}  # sequences of the stored ones, by line
        self._done_requests: list[int] = []

    def add_line(self, line: BatchLine) -> None:
        """Lines come in their order, before all else."""
        for values in (self._states, self._prompt_tokens, self._output_tokens, self._sequences):
            values.extend([0] * (line.line + 1 - len(values)))
        self._states[line.line] = OPEN
        self._prompt_tokens[line.line] = line.num_prompt_tokens
        self._output_tokens[line.line] = line.most_output_tokens
        self.open_tokens += line.most_tokens
        if line.num_sampling_bytes:
            self._sampling_bytes[line.line] = line.num_sampling_bytes
        self.total += 1
        self.num_open += 1

    def add_request(self, line: int, sequence: int) -> bool:
        """A stored request was read; True where it still has to run, and is held from here on."""
        self._sequences[line] = sequence
        if not self.is_open(line):
            self._done_requests.append(sequence)
            return False
        if self._states[line] == OPEN:
            self._states[line] = HELD
            self._hold(1, self._bytes_of(line))
        return True

    def add_result(self, line: int, result: OfflineResult) -> bool:
        """False where the line is none of the batch, or has a result."""
        return self.is_open(line) and self.add_counts(line, add_to(BatchCounts(), result, self._prompt_tokens[line]))

    def add_counts(self, line: int, counts: BatchCounts) -> bool:
        """As ``add_result``, for one that counts so much."""
        if not self.is_open(line):
            return False
        if self._states[line] == HELD:
            self._hold(-1, -self._bytes_of(line))
        self._states[line] = DONE
        self.num_open -= 1
        self.open_tokens -= self._prompt_tokens[line] + self._output_tokens[line]
        if self._sequences[line]:
            self._done_requests.append(self._sequences[line])
        self.counts += counts
        return True

    def open_lines(self) -> list[int]:
        """Lines without a result."""
        return [line for line in range(len(self._states)) if self.is_open(line)]

    def never_held(self) -> list[int]:
        """Open lines whose request was not handed to the pool, or read."""
        return [line for line, state in enumerate(self._states) if state == OPEN]

    def add_failure(self, line: int, sequence: int) -> int:
        """A stored failure was read, perhaps again; how many the line has, 0 where it is not open."""
        if not self.is_open(line):
            return 0
        self._failures.setdefault(line, {})[sequence] = None
        return self.num_failures(line)

    def num_failures(self, line: int) -> int:
        """Runs of the line that failed."""
        return len(self._failures.get(line, ()))

    def is_open(self, line: int) -> bool:
        """It is a line of the batch, and has no result."""
        return line < len(self._states) and self._states[line] in (OPEN, HELD)

    def take_done_requests(self) -> list[int]:
        """Sequences of stored requests that are needed no more, each given once."""
        taken, self._done_requests = self._done_requests, []
        return taken

    def take_held(self) -> list[str]:
        """Requests without a result that were handed to the pool, in the order of their lines; none is held now."""
        held = [f"{self.batch_id}.{line}" for line, state in enumerate(self._states) if state == HELD]
        self._states = self._states.replace(bytes([HELD]), bytes([OPEN]))
        self._hold(-self.num_held, -self.held_bytes)
        return held

    def _hold(self, num_lines: int, num_bytes: int) -> None:
        """So much more."""
        self.num_held += num_lines
        self.held_bytes += num_bytes
        self._room.held_bytes += num_bytes

    def _bytes_of(self, line: int) -> int:
        return REQUEST_BYTES + TOKEN_BYTES * self._prompt_tokens[line] + self._sampling_bytes.get(line, 0)


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
        output_tokens=counts.output_tokens + sum(len(choice.token_ids) for choice in result.choices),
    )
