"""What one stream holds, in memory and as of its last sync."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.simulation.nats.session import Headers, headers_size
from tests.simulation.nats.subjects import is_literal, matches

RECORD_BYTES = 30  # of a file store's record, besides subject, headers and data
HEADERS_LENGTH_BYTES = 4
IN_MEMORY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. ``num_bytes``: as the stream's limits count it."""

    sequence: int
    subject: str
    headers: Headers | None
    data: bytes
    stored_ns: int  # unix time
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Change:
    """One record of the journal: this message came or went. ``last``: the last sequence before it."""

    message: Message
    is_removal: bool
    last: int


class Store:
    """Messages by their sequence, and by subject. ``may_lose``: a journal of what is not synced is kept."""

    def __init__(self, is_file: bool, may_lose: bool) -> None:
        self.messages: dict[int, Message] = {}  # in the order of their sequences
        self.subjects: dict[str, dict[int, None]] = {}  # sequences, in order
        self.first, self.last = 0, 0
        self.last_ns = 0  # when the last was stored
        self.num_bytes = 0
        self._is_file = is_file
        self._may_lose = may_lose
        self._journal: list[_Change] = []

    def size_of(self, subject: str, headers: Headers | None, data: bytes) -> int:
        num_headers = headers_size(headers)
        if not self._is_file:
            return IN_MEMORY_BYTES + len(subject) + num_headers + len(data)
        return RECORD_BYTES + len(subject) + len(data) + (num_headers and num_headers + HEADERS_LENGTH_BYTES)

    def append(self, subject: str, headers: Headers | None, data: bytes, now_ns: int) -> Message:
        message = Message(self.last + 1, subject, headers, data, now_ns, self.size_of(subject, headers, data))
        self._note(message, is_removal=False)
        self._insert(message)
        return message

    def remove(self, sequence: int) -> Message | None:
        """None where it is not there."""
        message = self.messages.pop(sequence, None)
        if message is None:
            return None
        self._note(message, is_removal=True)
        self.num_bytes -= message.num_bytes
        of_subject = self.subjects[message.subject]
        del of_subject[sequence]
        if not of_subject:
            del self.subjects[message.subject]
        if sequence == self.first:
            self.first = next(iter(self.messages), self.last + 1)
        return message

    def skip_to(self, sequence: int) -> None:
        """An empty stream goes on there."""
        assert not self.messages
        self.first, self.last = sequence, max(self.last, sequence - 1)

    def of_subject(self, subject: str) -> dict[int, None]:
        return self.subjects.get(subject, {})

    def last_of(self, pattern: str) -> int:
        """The newest sequence of matching subjects, or 0."""
        return max((next(reversed(self.subjects[subject])) for subject in self.matching(pattern)), default=0)

    def matching(self, pattern: str) -> Iterator[str]:
        """The subjects that hold messages."""
        if is_literal(pattern):
            if pattern in self.subjects:
                yield pattern
        else:
            yield from [subject for subject in self.subjects if matches(pattern, subject)]

    def sequences(self, patterns: Iterable[str], start: int) -> list[int]:
        """Of matching messages from there on, in order. No patterns: of all."""
        wanted = list(patterns)
        if not wanted or ">" in wanted:
            return [sequence for sequence in self.messages if sequence >= start]
        subjects = dict.fromkeys(subject for pattern in wanted for subject in self.matching(pattern))
        found = (sequence for subject in subjects for sequence in self.subjects[subject] if sequence >= start)
        return sorted(found)

    # the disk

    @property
    def is_synced(self) -> bool:
        return not self._journal

    def sync(self) -> None:
        self._journal.clear()

    def cut_power(self, rng: random.Random) -> None:
        """Of what was not synced, the newest changes are lost: all, or some where the system had written more."""
        num_kept = rng.randint(0, len(self._journal))
        messages, last = dict(self.messages), self.last
        while len(self._journal) > num_kept:
            change = self._journal.pop()
            if change.is_removal:
                messages[change.message.sequence] = change.message
            else:
                del messages[change.message.sequence]
                last = change.last
        self._journal.clear()
        self.messages, self.subjects, self.num_bytes, self.first, self.last, self.last_ns = {}, {}, 0, 0, 0, 0
        for sequence in sorted(messages):
            self._insert(messages[sequence])
        if last > self.last:
            self.last = last
            self.first = self.first or last + 1

    def _insert(self, message: Message) -> None:
        if not self.messages:
            self.first = message.sequence
        self.messages[message.sequence] = message
        self.subjects.setdefault(message.subject, {})[message.sequence] = None
        self.last, self.last_ns = message.sequence, message.stored_ns
        self.num_bytes += message.num_bytes

    def _note(self, message: Message, is_removal: bool) -> None:
        if self._may_lose:
            self._journal.append(_Change(message, is_removal, self.last))
