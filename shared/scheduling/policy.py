"""What a schedule is made by."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """The strategies of a preset, as far as one schedule needs them.

    ``latency_budget_ms``: L of HyGen Alg. 2, the time that offline work may fill a step up to; infinite is none.
    ``packing``: how a step is filled, a name that ``packing_named`` knows. ``idle_budget_ms``: where it is more, L of
    a step while no online request is held. No token waits for such a step, only a request that comes meanwhile.
    """

    latency_budget_ms: float = math.inf
    offline_enabled: bool = True
    packing: str = "two-phase"
    idle_budget_ms: float = 0.0

    def budget_ms(self, has_online: bool) -> float:
        """L of a step; ``has_online``: an online request is held, whether it runs or waits."""
        return self.latency_budget_ms if has_online else max(self.latency_budget_ms, self.idle_budget_ms)
