"""What one API key has used of its budget, as a gateway charges and asks it."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.http.errors import Refusal
from shared.clock import Clock
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import INSUFFICIENT_QUOTA, KeyUsage, UsagePlace, day_of
from shared.protocol.subjects import model_token
from shared.watch.usage_ledger import UsageLedger


@dataclass(frozen=True, slots=True)
class Account:
    """Of one key at one gateway, for what it uses of one model. ``model``: its name in the stack, or an adapter's;
    ``gateway_id``: the process's own, so that no other writes what it counts."""

    key: ApiKeyRecord
    model: str
    gateway_id: str
    ledger: UsageLedger
    clock: Clock

    def check(self) -> None:
        """Whether there are tokens left of its budgets. What is under way when they are used up goes on, so more may
        be used. Raises Refusal (429), which OpenAI's clients are told not to repeat."""
        spent = self.ledger.totals.spent_budget(self.key, self.clock.unix_s())
        if spent is not None:
            reason, code = f"tokens_per_{spent.period}", INSUFFICIENT_QUOTA
            raise Refusal(reason, spent.message, spent.left_s, 429, code, headers={"x-should-retry": "false"})

    def charge(self, usage: KeyUsage) -> None:
        """It was used now."""
        source = f"gateway-{self.gateway_id}"
        place = UsagePlace(day_of(self.clock.unix_s()), self.key.name, source, model_token(self.model))
        self.ledger.put(place, self.ledger.get(place) + usage)
