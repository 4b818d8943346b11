"""A preset with what it leaves open."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shared.scheduling.batch import Policy
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.rate import OfflineRate
from shared.scheduling.orders.offline.registry import make_offline_order
from shared.scheduling.orders.online.order import OnlineOrder
from shared.scheduling.orders.online.registry import make_online_order
from shared.scheduling.packing.token_slo import TokenSlo
from shared.scheduling.presets import DEFAULT_UTILITY_RATIO, Preset


@dataclass(frozen=True, slots=True)
class Strategy:
    """A preset and its two knobs, each None where the preset does not use it; the orders' settings; and by which SLO
    deadlines go."""

    preset: Preset
    budget_ms: float | None = None
    offline_qps: float | None = None
    utility_ratio: float = DEFAULT_UTILITY_RATIO
    online_order: str = "fcfs"
    slo: TokenSlo = field(default_factory=TokenSlo)
    idle_budget_ms: float = 0.0  # of a step while no online request is held, where it is more

    def policy(self) -> Policy:
        return self.preset.policy(self.budget_ms, idle_budget_ms=self.idle_budget_ms)

    def offline_rate(self) -> OfflineRate:
        """A new one. Raises ValueError where the preset needs a rate that is missing, or does not use the given."""
        return self.preset.offline_rate(self.offline_qps)

    def make_offline_order(self, seed: int) -> OfflineOrder:
        """A new one; the same seed draws the same. Raises ValueError for a bad utility ratio."""
        numbers = iter(random.Random(f"{seed}:order").random, None)
        return make_offline_order(self.preset.offline_order, self.utility_ratio, numbers)

    def make_online_order(self) -> OnlineOrder:
        """A new one. Raises ValueError for an unknown name, or one that the preset does not go by."""
        return make_online_order(self.preset.require_online_order(self.online_order))
