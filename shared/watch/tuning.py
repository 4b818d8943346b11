"""Latency models and budgets as they change: what the predictor and the profiler publish, for those who schedule."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from shared.bus import Bus
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy

logger = logging.getLogger(__name__)

NO_LATENCY_KNOWN = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)


class Tuning:
    """The newest latency model and latency budget of each profile key. ``on_change`` is called after each change."""

    def __init__(self, bus: Bus, on_change: Callable[[], None]) -> None:
        self._bus = bus
        self._on_change = on_change
        self._models: dict[str, LatencyModel] = {}
        self._budgets: dict[str, BudgetRecord] = {}
        self._asked: tuple[ExecutorInfo, Role, Policy] | None = None  # for the policy last, since there was news

    def model(self, profile_key: str) -> LatencyModel:
        """A model that predicts nothing until one was fitted; ``budget_ms`` is None until then."""
        return self._models.get(profile_key, NO_LATENCY_KNOWN)

    def knows_model(self, profile_key: str) -> bool:
        """A model was fitted."""
        return profile_key in self._models

    def budget_ms(self, profile_key: str) -> float | None:
        """None until both a budget and a latency model to hold it with are known."""
        budget = self._budgets.get(profile_key)
        return budget.latency_budget_ms if budget is not None and profile_key in self._models else None

    def policy(self, info: ExecutorInfo, role: Role = Role.MIXED) -> Policy:
        """That of an executor's strategy, by what is known now; ``role``: what it acts as. A search that measures
        online requests alone keeps offline ones out of an idle executor too."""
        if self._asked is None or self._asked[0] is not info or self._asked[1] is not role:
            policy = self._policy(info)
            self._asked = info, role, policy if role is policy.role else replace(policy, role=role)
        return self._asked[2]

    async def run(self) -> None:
        """Follow both buckets; never returns."""
        models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        budgets = await self._bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        async with asyncio.TaskGroup() as group:
            group.create_task(models.follow(self._on_model))
            group.create_task(budgets.follow(self._on_budget))

    def _policy(self, info: ExecutorInfo) -> Policy:
        profile_key, strategy = info.profile_key, info.strategy
        budget, budget_ms = self._budgets.get(profile_key), self.budget_ms(profile_key)
        if budget is None:
            return strategy.policy(None, self.knows_model(profile_key))
        if budget.source is BudgetSource.PROFILING and not budget_ms:
            budget_ms = None
        return strategy.policy(
            budget_ms,
            self.knows_model(profile_key),
            budget.idle_budget_ms,
            budget.tolerance,
            info.spec.is_interruptible,
        )

    def _on_model(self, profile_key: str, record: LatencyModelRecord | None) -> None:
        if record is None:
            return
        self._asked = None
        try:
            self._models[profile_key] = record.latency_model()
        except ValueError as error:
            logger.warning("ignored a latency model", extra={"profile_key": profile_key, "why": str(error)})
            return
        self._on_change()

    def _on_budget(self, profile_key: str, record: BudgetRecord | None) -> None:
        self._asked = None
        if record is None:
            self._budgets.pop(profile_key, None)
        else:
            self._budgets[profile_key] = record
        self._on_change()
