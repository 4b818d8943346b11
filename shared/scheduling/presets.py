"""Presets: named combinations of strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.named import named
from shared.scheduling.batch import Policy
from shared.scheduling.kv.policy import LRU, KVPolicy, kv_policy_named
from shared.scheduling.orders.offline.rate import OfflineRate

OWN_KV_POLICY = "preset"
DEFAULT_UTILITY_RATIO = 0.9  # u of HyGen Alg. 4, which gives none: nearly all of psm's cache hits (docs/benchmarks.md)


@dataclass(frozen=True, slots=True)
class Preset:
    """``uses_latency_budget``: offline work is held to a step's latency budget; ``serves_offline``: it runs at all;
    ``uses_offline_rate``: its requests enter at a fixed rate; ``offline_order``: a name that ``make_offline_order``
    knows; ``packing``: one that ``packing_named`` knows; ``kv_policy``: one that ``kv_policy_named`` knows, where none
    is asked for."""

    name: str
    uses_latency_budget: bool
    serves_offline: bool
    offline_order: str = "fcfs"
    uses_offline_rate: bool = False
    packing: str = "two-phase"
    kv_policy: str = LRU.name

    @property
    def uses_deadlines(self) -> bool:
        """Online requests are scheduled by when their tokens are due."""
        return self.packing == "deadline"

    def offline_rate(self, qps: float | None) -> OfflineRate:
        """At which offline requests enter. Raises ValueError where a rate is missing, or given and not used."""
        if self.uses_offline_rate:
            if qps is None:
                raise ValueError(f"preset {self.name} serves offline requests at a fixed rate: give --offline-qps")
            return OfflineRate(qps)
        if qps is not None:
            raise ValueError(f"preset {self.name} has no fixed offline rate: leave --offline-qps out")
        return OfflineRate()

    def require_online_order(self, name: str) -> str:
        """The name. Raises ValueError where the preset has an order of its own."""
        if name != "fcfs" and self.packing != "two-phase":
            raise ValueError(f"preset {self.name} orders online requests itself: leave --online-order {name} out")
        return name

    def kv_policy_named(self, name: str) -> KVPolicy:
        """The preset's own for ``OWN_KV_POLICY``. Raises ValueError that lists the known ones."""
        return kv_policy_named(self.kv_policy if name == OWN_KV_POLICY else name)

    def policy(
        self, latency_budget_ms: float | None, model_is_known: bool = True, idle_budget_ms: float = 0.0
    ) -> Policy:
        """The policy under a budget; without a known one, or without a latency model to keep deadlines with, a preset
        that needs it serves no offline work yet."""
        if not self.uses_latency_budget:
            serves_offline = self.serves_offline and (model_is_known or not self.uses_deadlines)
            return Policy(math.inf, serves_offline, self.packing)
        if latency_budget_ms is None:
            return Policy(0.0, offline_enabled=False)
        return Policy(latency_budget_ms, self.serves_offline, idle_budget_ms=idle_budget_ms)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("hygen", uses_latency_budget=True, serves_offline=True, offline_order="psm-fair"),
        Preset("sarathi++", uses_latency_budget=False, serves_offline=True),  # HyGen section 5.1: online first, no SLO
        # HyGen section 5.1: sarathi++ at an offline QPS that keeps the SLO
        Preset("hygen-star", uses_latency_budget=False, serves_offline=True, uses_offline_rate=True),
        Preset("online-only", uses_latency_budget=False, serves_offline=False),
        # BROS: Alg. 1, and what section 7 compares it with: turns (section 2.2), and no priorities, as vLLM
        Preset("bros", False, True, offline_order="psm-fair", packing="deadline", kv_policy="bidirectional"),
        Preset("round-robin", uses_latency_budget=False, serves_offline=True, packing="round-robin"),
        Preset("fcfs", uses_latency_budget=False, serves_offline=True, packing="fcfs"),
    )
}


def preset_named(name: str) -> Preset:
    """Raises ValueError that lists the known presets."""
    return named(PRESETS, name, "preset")
