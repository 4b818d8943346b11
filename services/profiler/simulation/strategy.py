"""A preset with what it leaves open."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from shared.scheduling.batch import Policy
from shared.scheduling.orders.fair_order import FairOrder, Share
from shared.scheduling.orders.offline import OfflineOrder, make_offline_order
from shared.scheduling.orders.offline_rate import OfflineRate
from shared.scheduling.orders.online import online_order_named
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

    def make_pool_order(self, seed: int) -> OfflineOrder:
        """A new one, as the offline-queue has it; the same seed draws the same. Raises ValueError for a bad utility
        ratio."""
        numbers = iter(random.Random(f"{seed}:order").random, None)
        make_order = partial(make_offline_order, self.preset.offline_order, self.utility_ratio, numbers)
        make_order()  # raises now what it would raise later
        return FairOrder(make_order, lambda batch_id: Share())

    def check_orders(self) -> None:
        """Raises ValueError where its orders cannot be made."""
        online_order_named(self.preset.require_online_order(self.online_order))
        self.make_pool_order(seed=0)
