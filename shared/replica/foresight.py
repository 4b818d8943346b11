"""Whether all has come as the scheduler foresaw it."""

import math

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.steps import StepPlan
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.request_cache import HashedRequests
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable


class Foresight:
    """A scheduler that is told what is held plans over the expected outcome of the step that runs (CALCULATE expected
    status, HyGen section A.1). Where that has come true, and nothing else has happened, its plan needs no
    reconciliation: it was made from what is here."""

    def __init__(self, table: RequestTable, pool: KVPool, cache: HashedRequests, is_possible: bool) -> None:
        """``is_possible``: the scheduler can work out what becomes of a step."""
        self._table = table
        self._pool = pool
        self._cache = cache
        self._is_possible = is_possible
        self._holds = False
        self._num_free_blocks = 0  # as the scheduler has it by now; shared blocks free less than they count

    def tell(self) -> None:
        """The scheduler is told all that is held."""
        self._holds = True
        self._num_free_blocks = self._pool.num_free

    def end(self, request: Request) -> None:
        """A request reached its length limit, as was foreseen, and its blocks are thought free."""
        self._num_free_blocks += request.num_freed_blocks

    def err(self) -> None:
        """Something happened that was not foreseen."""
        self._holds = False

    def came_true(
        self, plan: StepPlan, policy: Policy, model: LatencyModel, pace: Pace, has_reserve: bool = False
    ) -> bool:
        """All is as the plan was made from, so that reconciling it would change nothing: budget, model and pace, which
        may have changed since, are asked where they matter. ``has_reserve``: so may what an offline request has to
        leave when it enters."""
        table, pool = self._table, self._pool
        waits_in_memory = table.waiting(Kind.ONLINE) and table.online_order.counters() is not None
        return (
            self._is_possible
            and self._holds
            and self._num_free_blocks == pool.num_free
            and packing_named(policy.packing).keeps_plans
            and not (plan.preempted or waits_in_memory)
            and pool.num_offline_only == table.num_blocks(Kind.OFFLINE)
            and not (has_reserve and self._lets_offline_in(plan))
            and self._is_within_budget(plan, policy, model, pace)
        )

    def _lets_offline_in(self, plan: StepPlan) -> bool:
        waiting = self._table.waiting(Kind.OFFLINE)
        return any(entry.request_id in waiting for entry in plan.entries)

    def _is_within_budget(self, plan: StepPlan, policy: Policy, model: LatencyModel, pace: Pace) -> bool:
        """Its entries are all here, and those of offline requests may run beside the others."""
        entries, features, get = plan.entries, BatchFeatures(), self._table.get
        for entry in entries:
            request = get(entry.request_id)
            if request is None:
                return False
            num_tokens, num_computed = entry.num_scheduled_tokens, request.num_computed_tokens
            if request.num_blocks == 0:
                num_computed = self._cache.found(request).num_tokens
                if num_computed + num_tokens != request.num_tokens:
                    return False  # of a part of a prompt it cannot be told whether as much is found as was expected
            features.add_scheduled(num_tokens, num_computed)
        if not entries or entries[-1].kind is Kind.ONLINE:  # entries are online first
            return True
        budget_ms = policy.budget_ms(self._table.holds_online, model)
        if plan.share.num_requests and policy.tolerance is not None:
            budget_ms = pace.credit.budget_ms(plan.share)
        return policy.offline_enabled and (math.isinf(budget_ms) or model.predict_ms(features) <= budget_ms)
