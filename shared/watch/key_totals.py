"""What API keys have used in a day and in a month, added up over all that count it. No clock and no bus in it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of, left_of_day_s, left_of_month_s, month_of

NONE = KeyUsage()


class KeyTotals:
    """The totals of each source replace each other; those of a day and a month are the sums over the sources."""

    def __init__(self) -> None:
        self._usages: dict[UsagePlace, KeyUsage] = {}
        self._sums: dict[tuple[str, str], KeyUsage] = {}  # by name, and day or month

    def get(self, place: UsagePlace) -> KeyUsage:
        return self._usages.get(place, NONE)

    def take(self, place: UsagePlace, usage: KeyUsage) -> None:
        """It is so much by now, in place of what was told of it before."""
        change = usage - self.get(place)
        self._usages[place] = usage
        for period in (place.day, month_of(place.day)):
            self._sums[place.name, period] = self.total(place.name, period) + change

    def total(self, name: str, period: str) -> KeyUsage:
        """Of a key in a day or in a month."""
        return self._sums.get((name, period), NONE)

    def forget_before(self, month: str) -> None:
        """What is older counts for no budget."""
        self._usages = {place: usage for place, usage in self._usages.items() if month_of(place.day) >= month}
        self._sums = {key: usage for key, usage in self._sums.items() if month_of(key[1]) >= month}

    def spent_budget(self, key: ApiKeyRecord, unix_s: float) -> SpentBudget | None:
        """Of those that are used up, the one that lasts longest; None where there is none."""
        day = day_of(unix_s)
        budgets = (
            ("month", key.tokens_per_month, month_of(day), left_of_month_s),
            ("day", key.tokens_per_day, day, left_of_day_s),
        )
        for period, limit, since, left_s in budgets:
            if limit is not None and self.total(key.name, since).total_tokens >= limit:
                return SpentBudget(key.name, period, limit, left_s(unix_s))
        return None


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """No tokens are left of it. ``period``: day or month; ``left_s``: until there are some again."""

    key_name: str
    period: str
    limit: int
    left_s: float

    @property
    def message(self) -> str:
        """Begins as OpenAI's."""
        return (
            f"You exceeded your current quota: the API key {self.key_name!r} has used its {self.limit:,} tokens of "
            f"this {self.period} (UTC). There are some again in the next, or with another budget."
        )
