"""Whether all has come as the scheduler foresaw it."""

import math

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.protocol.steps import StepPlan
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.request_cache import HashedRequests, StepCache
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import HELD, OFFLINE, ONLINE, Request
from shared.scheduling.table import RequestTable

ON_TIME_MS = 1e-6  # from when a step was to start; less is rounding


class Foresight:
    """A scheduler that is told what is held plans over the expected outcome of the step that runs (CALCULATE expected
    status, HyGen section A.1). Where that has come true, and nothing else has happened, its plan needs no
    reconciliation: it was made from what is here."""

    def __init__(self, table: RequestTable, pool: KVPool, cache: HashedRequests, is_possible: bool) -> None:
        """``is_possible``: the scheduler can work out what becomes of a step."""
        self._table = table
        self._pool = pool
        self._cache = cache
        self.is_possible = is_possible
        self._holds = False
        self._num_free_blocks = 0  # as the scheduler has it by now; shared blocks free less than they count
        self._due_ms = 0.0
        self._arrived: dict[str, None] = {}  # online requests, since the scheduler was told

    def tell(self, due_ms: float) -> None:
        """The scheduler is told all that is held; what it plans then is to start at ``due_ms``."""
        self._holds = True
        self._num_free_blocks = self._pool.num_free
        self._due_ms = due_ms
        self._arrived.clear()

    def arrive(self, request_id: str) -> None:
        """An online request came. It waits behind those that were there, and changes nothing where one of them stays
        waiting."""
        self._arrived[request_id] = None

    def end(self, request: Request) -> None:
        """A request reached its length limit, as was foreseen, and its blocks are thought free."""
        self._num_free_blocks += request.num_freed_blocks

    def err(self) -> None:
        """Something happened that was not foreseen."""
        self._holds = False

    def came_true(
        self, plan: StepPlan, policy: Policy, model: LatencyModel, pace: Pace, now_ms: float, has_reserve: bool = False
    ) -> bool:
        """All is as the plan was made from, so that reconciling it would change nothing: budget, model and pace, which
        may have changed since, are asked where they matter. ``has_reserve``: so may what an offline request has to
        leave when it enters. Of a packing that goes by the time, plans are kept that are for just this time, and by
        which no offline request enters: some of what it was to find held may be of somebody who has just ended."""
        table, pool, packing = self._table, self._pool, packing_named(policy.packing)
        waits_in_memory = table.waiting(ONLINE) and table.online_order.counters() is not None
        return (
            self.is_possible
            and self._holds
            and self._num_free_blocks == pool.num_free
            and packing.keeps_plans
            and not (packing.uses_time and abs(now_ms - self._due_ms) > ON_TIME_MS)
            and not (plan.preempted or waits_in_memory)
            and not (self._arrived and self._may_let_arrived_in(plan))
            and pool.num_offline_only == table.num_blocks(OFFLINE)
            and not ((has_reserve or packing.uses_time) and self._lets_offline_in(plan))
            and self._is_within_budget(plan, policy, model, pace)
        )

    def _may_let_arrived_in(self, plan: StepPlan) -> bool:
        """It leaves nobody waiting who was there before them."""
        planned = {entry.request_id for entry in plan.entries}  # membership only
        left = next((each for each in self._table.waiting(ONLINE) if each not in planned), None)
        return left is None or left in self._arrived

    def _lets_offline_in(self, plan: StepPlan) -> bool:
        waiting = self._table.waiting(OFFLINE)
        return bool(waiting) and any(entry.request_id in waiting for entry in plan.entries)

    def _is_within_budget(self, plan: StepPlan, policy: Policy, model: LatencyModel, pace: Pace) -> bool:
        """Its entries are as they were, and those of offline requests may run beside the others."""
        scheduled = self._scheduled(plan)
        if scheduled is None:
            return False
        if not scheduled or plan.entries[-1].kind is ONLINE:  # entries are online first
            return True
        budget_ms = policy.budget_ms(self._table.holds_online, model)
        if plan.share.num_requests and policy.tolerance is not None:
            budget_ms = pace.credit.budget_ms(plan.share)
        if not policy.offline_enabled or math.isinf(budget_ms):
            return policy.offline_enabled
        features = BatchFeatures()
        features.add_all(scheduled)
        return model.predict_ms(features) <= budget_ms

    def _scheduled(self, plan: StepPlan) -> list[tuple[int, int]] | None:
        """The tokens of each entry, and those that are computed before them. None where one is not here, or was held
        since; or waits, and something of it is found, where that is a part of a prompt, somebody else has come, or
        nobody holds all of it any more: it cannot be told whether as much was expected, to be held by others. Where
        nothing is found nothing was expected: what could be found when the scheduler was told is evicted by the next
        step at the earliest. What entries compute before it is found, and was expected."""
        table, scheduled = self._table, list[tuple[int, int]]()
        cache = StepCache(self._cache, self._pool.block_size)
        running = table.running(ONLINE), table.running(OFFLINE)
        for entry in plan.entries:
            request = running[entry.kind].get(entry.request_id) or table.get(entry.request_id)
            if request is None or request.num_in_flight_tokens == HELD:
                return None
            num_tokens, num_computed = entry.num_scheduled_tokens, request.num_computed_tokens
            if request.num_blocks == 0:
                found = cache.found(request)
                num_computed = found.num_tokens
                is_held = found.num_held_blocks * self._pool.block_size >= num_computed
                if num_computed and (self._arrived or num_computed + num_tokens != request.num_tokens or not is_held):
                    return None
            if num_tokens > 1:
                cache.compute(request, num_computed, num_tokens)
            scheduled.append((num_tokens, num_computed))
        return scheduled
