"""SCHEDULER of HyGen Alg. 2 (lines 22-33) without queues and engine: what an executor runs next, and what it says of
it. Synchronous: the live loop and the simulator feed it."""

from collections import deque
from collections.abc import Sequence

from shared.latency.model import LatencyModel
from shared.protocol.steps import EndedRequest, PlanSource, StepPlan, StepStarted
from shared.replica.ahead import Running
from shared.replica.outputs import Ended, ended_request
from shared.replica.replica import Replica
from shared.scheduling.policy import Policy

NUM_LATELY = 64  # steps with ends that are remembered


class StepPlanner:
    """Call ``next_step`` while fewer than ``depth`` steps are in flight; where something runs, launch it and publish
    ``start``. Where nothing is in flight and nothing can run: ``rest``, and publish ``idle_message``."""

    def __init__(self, replica: Replica, executor_id: str, epoch: str, depth: int) -> None:
        self.step = 0  # that starts next
        self._replica = replica
        self._executor_id = executor_id
        self._epoch = epoch
        self._depth = depth
        self._plans: dict[int, StepPlan] = {}  # by step, of steps to come
        self._aborted: dict[str, None] = {}  # that these bring
        self._steps_since_idle = 0
        self._num_given = 0  # requests to other executors, when it last had nothing to run
        self._tells_all = True
        self._ended: list[EndedRequest] = []  # since the last message
        self._lately: deque[tuple[int, list[str]]] = deque(maxlen=NUM_LATELY)  # who ended, and the step that tells it

    @property
    def is_idle(self) -> bool:
        """No step has started since it last had nothing to run, and nothing has left meanwhile for another executor:
        others may have waited for its blocks."""
        return not self._steps_since_idle and self._num_given == self._replica.totals.handed_over

    @property
    def has_plan(self) -> bool:
        """Of the step that starts next."""
        return self.step in self._plans

    def take_plan(self, plan: StepPlan, is_late: bool = False) -> None:
        """Keep the plan of a step to come. Of one whose step has started already, or which ``is_late`` for another
        reason, the requests are taken: they wait for the next, so that offline work goes on where plans come later than
        steps start; but not those that have ended since, of which it could not know: where a plan and the word that
        nothing runs cross on their way, it is made again. One of a step that nobody can plan yet makes no sense, and is
        dropped."""
        self._tells_all = self._tells_all or plan.wants_all
        if plan.step < self.step or is_late:
            self._replica.totals.plans_stale += 1
            ended = {each for step, ids in self._lately if step > plan.step for each in ids}
            self._replica.take_in_late(plan, ended)
        elif plan.step <= self.step + self._depth:
            self._plans[plan.step] = plan
        else:
            self._replica.totals.plans_stale += 1

    def abort(self, request_ids: Sequence[str]) -> None:
        """As ``Replica.abort``; one that a plan is to bring ends when it does."""
        self._replica.abort(request_ids)
        brought = self._brought()
        self._aborted |= {request_id: None for request_id in request_ids if request_id in brought}

    def next_step(self, policy: Policy, model: LatencyModel) -> tuple[PlanSource, Running]:
        """The plan where it came in time; else, or where nothing of it is left to run, a plan made here. A plan of
        which nothing can run yet is kept until its step starts."""
        plan = self._next_plan()
        if plan is not None:
            running = self._replica.allocate(self._replica.schedule(plan, policy, model))
            if running:
                return PlanSource.PLAN, running
        source = PlanSource.LOCAL if self._steps_since_idle >= self._depth else PlanSource.IDLE
        if not self._replica.has_work:
            return source, []
        return source, self._replica.allocate(self._replica.schedule(None, policy, model))

    def look_ahead(self, policy: Policy, model: LatencyModel) -> tuple[PlanSource, Running]:
        """As ``next_step``, while the step before it runs: see ``Replica.look_ahead``."""
        plan = self._next_plan()
        source = PlanSource.LOCAL if plan is None else PlanSource.PLAN
        return source, self._replica.look_ahead(plan, policy, model)

    def start(self, source: PlanSource) -> StepStarted:
        """What ``next_step`` gave has been launched; the message about it."""
        message, totals = self._message(source, idle=False), self._replica.totals
        totals.steps += 1
        totals.steps_planned += source is PlanSource.PLAN
        totals.steps_local += source is PlanSource.LOCAL
        totals.steps_idle += source is PlanSource.IDLE
        self.step += 1
        self._steps_since_idle += 1
        for step in [step for step in self._plans if step < self.step]:
            del self._plans[step]
        if self._aborted:
            brought = self._brought()
            self._aborted = {request_id: None for request_id in self._aborted if request_id in brought}
        return message

    def rest(self) -> None:
        """Nothing runs from here on."""
        self._steps_since_idle = 0
        self._num_given = self._replica.totals.handed_over

    def idle_message(self) -> StepStarted:
        """What is held while no step runs, so that a plan can come."""
        return self._message(PlanSource.IDLE, idle=True)

    def take_ended(self) -> list[Ended]:
        """Who left since the last call; the next message tells of them."""
        ended = self._replica.take_ended()
        self._ended += [ended_request(each) for each in ended]
        if ended:
            self._lately.append((self.step, [each.sequence.request_id for each in ended]))
        return ended

    def _next_plan(self) -> StepPlan | None:
        """Of the step that starts next, with what it brings taken in where some of that is not to run."""
        plan = self._plans.get(self.step)
        if plan is not None and self._aborted:
            self._replica.take_in(plan)
            self._replica.abort(list(self._aborted))
        return plan

    def _brought(self) -> set[str]:
        """By the plans that are kept; membership only."""
        return {request.request_id for plan in self._plans.values() for request in plan.admitted}

    def _message(self, source: PlanSource, idle: bool) -> StepStarted:
        """With several steps in flight it always tells all: the scheduler's picture is further from the truth then."""
        ended, self._ended = self._ended, []
        tells_all, self._tells_all = self._tells_all or self._depth > 1, False
        replica = self._replica
        *before, entries = replica.in_flight() or [[]]
        return StepStarted(
            self._executor_id,
            self._epoch,
            self.step,
            source,
            idle,
            entries,
            replica.tell(tells_all),
            ended,
            replica.pool.num_free,
            replica.table.online_order.counters(),
            before,
            replica.pace,
            replica.pool.take_cache_changes(),
            None if tells_all else replica.table.num_fresh,
            replica.pool.eviction.num_wanted,
            replica.num_reserved_blocks,
            replica.lacks_readers,
        )
