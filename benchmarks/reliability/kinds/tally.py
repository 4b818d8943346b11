"""What became of the requests of one kind, as its clients saw it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from loadgen.client.records import RequestRecord
from loadgen.errors import ServerError

REFUSALS = (429, 503)
NUMBER = re.compile(r"\d+(?:\.\d+)?|(?:file|batch)[-_]\w+")  # which would make each refusal's words its own
T = TypeVar("T")


class Kind(Protocol):
    """One sort of client. ``run`` goes on until it is cancelled, and leaves nothing of its own behind."""

    tally: Tally

    async def run(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """``refused`` by status and words, those that do not say when to come back also in ``without_retry``; ``failed``
    by what happened."""

    name: str
    num_sent: int = 0
    num_served: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    without_retry: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    retry_after_s: list[float] = field(default_factory=list)

    @property
    def num_refused(self) -> int:
        return self.refused.total()

    @property
    def num_failed(self) -> int:
        return self.failed.total()

    def note(self, record: RequestRecord) -> None:
        """A stream that has ended. One that was refused was answered with nothing else; an error after its first
        token is a failure, whatever its words."""
        self.num_sent += 1
        if record.ok:
            self.num_served += 1
        else:
            self._bad(record.status, record.retry_after_s, record.error or "")

    async def take(self, answer: Awaitable[T]) -> T | None:
        """The answer; None where there was none, which is noted."""
        self.num_sent += 1
        try:
            result = await answer
        except ServerError as error:
            self._bad(error.status, error.retry_after_s, str(error))
            return None
        self.num_served += 1
        return result

    def fail(self, words: str, was_served: bool = False) -> None:
        """What was sent has failed; ``was_served``: it was counted as served before."""
        self.num_sent += not was_served
        self.num_served -= was_served
        self.failed[words] += 1

    def _bad(self, status: int | None, retry_after_s: float | None, words: str) -> None:
        words = NUMBER.sub("N", words)
        if status not in REFUSALS:
            self.failed[words] += 1
            return
        self.refused[words] += 1
        if retry_after_s is None:
            self.without_retry[words] += 1
        else:
            self.retry_after_s.append(retry_after_s)
