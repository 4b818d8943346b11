"""What this gateway answered with an error or refused lately, and what each key has used since it started."""

from collections import Counter, deque
from dataclasses import dataclass, field
from math import floor

import msgspec

SPAN_S = 3600
BUCKET_S = 60
MAX_NAMES = 1000  # those that were used last; of keys that are gone some may be kept


@dataclass(slots=True)
class _Minute:
    number: int
    statuses: Counter[int] = field(default_factory=Counter)  # from 400 on
    refusals: Counter[str] = field(default_factory=Counter)  # by reason
    num_answered: int = 0


class HttpState(msgspec.Struct, frozen=True):
    """Of the last hour. ``errors``: by status, ``refusals``: by reason; the most frequent first."""

    num_answered: int
    errors: dict[str, int]
    refusals: dict[str, int]


class HttpTally:
    """Counts by the minute, so that its size does not depend on how many there are."""

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque()
        self.num_client_errors = 0  # since the start, as the two below: without refusals
        self.num_server_errors = 0
        self.num_refused = 0

    def answered(self, now_s: float, status: int, refused: str | None) -> None:
        """One answer has begun, at a monotonic time. ``refused``: why it was not served, where it was valid."""
        minute = self._minute(now_s)
        minute.num_answered += 1
        if refused is not None:
            minute.refusals[refused] += 1
            self.num_refused += 1
        elif status >= 500:
            self.num_server_errors += 1
        elif status >= 400:
            self.num_client_errors += 1
        if status >= 400:
            minute.statuses[status] += 1

    def last_hour(self, now_s: float) -> HttpState:
        """All of it together."""
        self._forget(now_s)
        statuses: Counter[int] = Counter()
        refusals: Counter[str] = Counter()
        for minute in self._minutes:
            statuses.update(minute.statuses)
            refusals.update(minute.refusals)
        errors = {str(status): number for status, number in statuses.most_common()}
        return HttpState(sum(minute.num_answered for minute in self._minutes), errors, dict(refusals.most_common()))

    def _minute(self, now_s: float) -> _Minute:
        number = floor(now_s / BUCKET_S)
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(_Minute(number))
            self._forget(now_s)
        return self._minutes[-1]

    def _forget(self, now_s: float) -> None:
        while self._minutes and self._minutes[0].number <= now_s / BUCKET_S - SPAN_S / BUCKET_S - 1:
            self._minutes.popleft()


class KeyUse(msgspec.Struct):
    """What one key has done at this gateway since it started. Requests: those that were answered with whatever status;
    tokens: of online and flex requests that ended."""

    requests: int = 0
    errors: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class KeyTally:
    """By the key's name; empty: without a known key."""

    def __init__(self) -> None:
        self._uses: dict[str, KeyUse] = {}  # the last that was used at the end

    def answered(self, name: str, status: int, refused: str | None) -> None:
        """One answer has begun."""
        use = self._of(name)
        use.requests += 1
        use.errors += status >= 400
        use.refused += refused is not None

    def generated(self, name: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A request of it ended."""
        use = self._of(name)
        use.prompt_tokens += num_prompt_tokens
        use.output_tokens += num_output_tokens

    def uses(self) -> dict[str, KeyUse]:
        """By name."""
        return dict(sorted(self._uses.items()))

    def _of(self, name: str) -> KeyUse:
        found = self._uses.pop(name, None) or KeyUse()
        if len(self._uses) >= MAX_NAMES:
            del self._uses[next(iter(self._uses))]
        self._uses[name] = found
        return found
