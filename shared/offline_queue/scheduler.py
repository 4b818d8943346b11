"""ASYNC_SCHEDULER of HyGen Alg. 2 (lines 5-21) for one executor."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shared.clock import Clock, waited_s
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.prompt_hashes import PromptHashes
from shared.offline_queue.told_readers import Path, ToldReaders
from shared.protocol.executors import ExecutorInfo
from shared.protocol.requests import AbortRequests, GenerateRequest, InboxMessage
from shared.protocol.sampling import ENDS_WELL, FinishReason
from shared.protocol.steps import StepPlan, StepStarted
from shared.replica.outputs import Ended
from shared.replica.sequence import LiveSequence, scheduled
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.limits import why_never_held
from shared.scheduling.orders.offline.view import OfflineView, no_queue
from shared.scheduling.planning.mirror import ARRIVAL_GRACE_STEPS, ExecutorMirror
from shared.scheduling.planning.pipeline import Pipeline
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, Request
from shared.scheduling.schedule import Schedule

MAX_PLAN_BYTES = 4 * 1024**2  # of the requests that one plan brings
MAX_SET_ASIDE = 256  # requests that one plan passes over, since they are too large


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot; times in milliseconds of one planning, publishing not counted."""

    plans: int
    plan_ms_mean: float
    plan_ms_max: float


class Scheduler:
    """Synchronous: the service feeds it messages and sends what it returns."""

    def __init__(
        self,
        info: ExecutorInfo,
        pool: OfflinePool,
        tuning: Callable[[], tuple[Policy, LatencyModel]],
        clock: Clock,
        why_hopeless: Callable[[Request], str] | None = None,
        max_plan_bytes: int = MAX_PLAN_BYTES,
    ) -> None:
        """``why_hopeless``: why no executor can hold a request, empty where one can, or may come; None where this is
        the only one. ``max_plan_bytes``: no more than half of what a message may have."""
        self.info = info
        self.takes_requests = True  # False: none enters, those that are there go on
        self._pool = pool
        self._tuning = tuning
        self._clock = clock
        self._why_hopeless = why_hopeless
        self._max_plan_bytes = max_plan_bytes
        self._refused: list[Ended] = []
        self._rate = info.strategy.make_offline_rate()
        self._is_idle = False  # the executor waits for a plan of the pipeline's next step
        self._has_news = False  # of the executor, since a plan was made
        self._hashes = PromptHashes(info.spec.block_size, pool.scoped_prompt)
        self._mirror = ExecutorMirror(info.limits(), info.strategy, self._hashes.of)
        self._readers = self._make_readers()
        self._taken: dict[str, int] = {}  # not told of yet -> messages that may lack them
        self._pipeline = Pipeline(self._mirror, info.spec.pipeline_depth)
        self._plans = 0
        self._plan_s_total = 0.0
        self._plan_s_max = 0.0

    def registered(self, info: ExecutorInfo) -> None:
        """What the same incarnation is by now."""
        self.info = info
        self._mirror.limits = info.limits()

    def on_inbox(self, message: InboxMessage) -> None:
        """An online request reaches executor and scheduler at the same time; so does an abort."""
        if isinstance(message, GenerateRequest):
            self._hashes.add(message)
            request = scheduled(message, self.info.spec.max_model_len)
            waited_ms = waited_s(self._clock, message.arrival_s) * 1e3
            self._mirror.arrive(request, self._clock.monotonic_s() * 1e3, waited_ms)
        else:
            for request_id in message.request_ids:
                self._mirror.depart(request_id)

    def hashes_of(self, request_id: str) -> Sequence[bytes]:
        """Of the full blocks of a request that it knows; not to be changed."""
        return self._hashes.of(request_id)

    @property
    def knows_idle(self) -> bool:
        """The executor has said that it runs nothing and holds nothing, and nothing was sent to it since."""
        holds = self._mirror.table or self._pipeline.entering or self._taken
        return self._is_idle and not holds and not self._pool.holds_any(self.info.executor_id)

    @property
    def needs_cache(self) -> bool:
        """What the prefix cache has is not known: the executor should tell it whole."""
        return self._mirror.told_cache.is_stale

    def on_cache(self, whole: CacheChanges) -> None:
        """The executor tells all that its prefix cache has."""
        self._mirror.told_cache.apply(whole)

    def on_step(self, message: StepStarted) -> AbortRequests | None:
        """Q_send.get: take over the executor's word. Returns what it should stop running."""
        if message.epoch != self.info.epoch:
            return None
        now_ms = self._clock.monotonic_s() * 1e3
        ahead_ms = now_ms - message.pace.now_ms  # deadlines are on the executor's clock
        for state in message.states if ahead_ms else ():
            state.deadline_ms += ahead_ms
        ended = [each.request_id for each in message.ended]
        held = [each.request_id for each in message.states if each.kind is OFFLINE]
        pace = message.pace.at(now_ms)
        self._mirror.observe(
            message.states,
            ended,
            message.num_free_blocks,
            message.client_counters,
            pace,
            message.num_fresh,
            message.cache,
            message.num_wanted_blocks,
            message.num_reserved_blocks,
        )
        if message.lacks_readers:
            self._readers = self._make_readers()
        if self._readers is not None:
            self._readers.forget(ended)
            self._readers.hear(held, self._pool.prompt)
        for request_id in ended:
            self._hashes.forget(request_id)
        self._hashes.keep(self._mirror.table.__contains__, len(self._mirror.table))
        for each in message.ended:
            if each.finish_reason in ENDS_WELL:
                self._pool.learn(each.request_id, each.num_output_tokens)
        self._is_idle, self._has_news = message.idle, True
        in_flight = [] if message.idle else [*message.in_flight, message.entries]
        brought = self._pipeline.observe(message.step if message.idle else message.step + 1, in_flight)
        self._await_late(message.idle, brought, set(ended))
        unwanted = self._settle(message, held)
        return AbortRequests(unwanted) if unwanted else None

    def took(self, request_id: str) -> None:
        """The executor has taken this offline request from another one. What it told before is to come here yet."""
        self._taken[request_id] = ARRIVAL_GRACE_STEPS

    def gave(self, request_id: str) -> None:
        """The executor has given this request, of either kind, to another one; unknown ids are ignored. Until it has
        heard that itself it still tells of it."""
        self._taken.pop(request_id, None)
        self._mirror.depart(request_id)
        self._hashes.forget(request_id)
        if self._readers is not None:
            self._readers.forget((request_id,))

    def plan(self) -> list[StepPlan]:
        """Assume the outcome of the steps in flight and plan what is due, in order: with pipeline depth K, up to the
        K-th step after the one that has started. None where there is no news of an executor that runs, or nothing to
        give it. To be asked when no other word of the executor waits: a plan for a step that has started comes too
        late."""
        if not (self._has_news or self._is_idle):
            return []
        self._has_news = False
        if self._is_idle and not (self._pool.num_waiting or self._mirror.table or self._pipeline.entering):
            self._rate.rest()
            return []
        if self._is_idle:  # its step starts now
            self._mirror.pace = self._mirror.pace.at(self._clock.monotonic_s() * 1e3)
        plans: list[StepPlan] = []
        while self._pipeline.is_due:
            plan = self._plan_step()
            if not plan.entries:
                break
            plans.append(plan)
            self._is_idle = False
        return plans

    def next_release_s(self) -> float | None:
        """When its rate lets the next offline request in; None where nothing waits for that."""
        return self._rate.next_s(self._clock.monotonic_s()) if self._pool.num_waiting else None

    def take_refused(self) -> list[Ended]:
        """Requests of the pool that no executor can hold, since the last call. Where there are some, others may wait
        behind them: plan again."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def is_for_prompts(self) -> bool:
        """Requests begin there."""
        return self._tuning()[0].role.is_for_prompts

    def why_never_held(self, request: Request) -> str:
        """Why the executor is too small for it, or lacks its adapter; empty where it does not."""
        why = self.info.spec.why_without(self._pool.adapter(request.request_id))
        return why or why_never_held(request, self._mirror.limits, self.info.spec.max_model_len)

    def holds(self, request_id: str) -> bool:
        """The executor is expected to hold this request."""
        return request_id in self._mirror.table

    def stats(self) -> SchedulerStats:
        mean_s = self._plan_s_total / self._plans if self._plans else 0.0
        return SchedulerStats(self._plans, mean_s * 1e3, self._plan_s_max * 1e3)

    def _await_late(self, is_idle: bool, brought: list[Request], ended: set[str]) -> None:
        """What a plan brings that came too late for its step is in a message to come, unless the executor waits: then
        the plan is lost."""
        if is_idle:
            for request_id in self._mirror.late:
                self._mirror.depart(request_id)
        for request in brought:
            if request.request_id not in ended and self._pool.is_held(request.request_id, self.info.executor_id):
                self._mirror.arrive(request)

    def _await_taken(self, told: set[str]) -> None:
        """As ``ExecutorMirror.arrive``: some messages may lack it."""
        left = ((request_id, num_left - 1) for request_id, num_left in self._taken.items() if request_id not in told)
        self._taken = {request_id: num_left for request_id, num_left in left if num_left}

    def _settle(self, message: StepStarted, held: list[str]) -> list[str]:
        ended = [e.request_id for e in message.ended if e.finish_reason is not FinishReason.ABORT]
        with_error = {each.request_id for each in message.ended if each.finish_reason is FinishReason.ERROR}
        if self._taken:
            self._await_taken({*held, *(each.request_id for each in message.ended)})
        coming = dict.fromkeys([*self._pipeline.entering, *self._mirror.late, *self._taken])
        for request_id in held if coming else ():
            coming.pop(request_id, None)
        unwanted = self._pool.settle(self.info.executor_id, [*held, *coming], ended, with_error)
        if unwanted:
            leaving = {state.request_id for state in message.states if state.is_held}  # for another, or to come back
            unwanted = [each for each in unwanted if each not in coming and each not in leaving]
        for request_id in unwanted:
            self._mirror.depart(request_id)
        return unwanted

    def _plan_step(self) -> StepPlan:
        start_s = self._clock.monotonic_s()
        policy, model = self._tuning()
        if self._pool.num_waiting == 0:
            self._rate.rest()
        hopeless: dict[str, str] = {}
        queue = partial(self._due, start_s, hopeless) if policy.role.is_for_prompts else no_queue
        schedule = self._pipeline.plan(queue, policy, model)
        self._refuse(hopeless)
        plan = self._message(self._pipeline.next_step, schedule)
        if plan.entries:
            self._pipeline.keep(schedule, [scheduled(each, self.info.spec.max_model_len) for each in plan.admitted])
        elapsed_s = self._clock.monotonic_s() - start_s
        self._plans += 1
        self._plan_s_total += elapsed_s
        self._plan_s_max = max(self._plan_s_max, elapsed_s)
        return plan

    def _due(self, now_s: float, hopeless: dict[str, str], view: OfflineView) -> Iterator[Request]:
        """As many as its rate lets in by now: of those that may enter, since who is passed over takes nobody's turn."""
        return self._rate.open(self._candidates(hopeless, view), now_s)

    def _candidates(self, hopeless: dict[str, str], view: OfflineView) -> Iterator[Request]:
        """What may enter, in order, as far as a message can bring it; requests that the executor can never hold are
        passed over, so that nobody waits behind them, and noted where no other can. So are those, unnoted, that the
        step passes. Of suspects, one at a time: what breaks then is known to be its doing. What the executor says it
        holds does not enter."""
        if not self.takes_requests:
            return
        executor_id, has_suspect, num_set_aside, num_bytes = self.info.executor_id, False, 0, 0
        for request in self._pool.in_order(replace(view, reader=executor_id)):
            if request.request_id in self._mirror.table:
                continue
            if self.why_never_held(request):
                if why := (self._why_hopeless or self.why_never_held)(request):
                    hopeless[request.request_id] = why
                num_set_aside += 1
                if num_set_aside == MAX_SET_ASIDE:
                    return
                continue
            if view.is_passed(request):
                continue
            if self._pool.is_suspect(request.request_id):
                if has_suspect or self._pool.holds_suspect(executor_id):
                    continue
                has_suspect = True
            size = self._pool.num_bytes(request.request_id)
            if num_bytes and num_bytes + size > self._max_plan_bytes:
                return
            num_bytes += size
            yield request

    def _refuse(self, hopeless: dict[str, str]) -> None:
        """As an executor ends a request that it can never hold, without sending it there."""
        for request_id, why in hopeless.items():
            sequence = LiveSequence.admit(self._pool.request(request_id), self.info.spec, None)
            self._refused.append(Ended(sequence, FinishReason.ERROR, why))
        self._pool.discard(list(hopeless))

    def _make_readers(self) -> ToldReaders | None:
        """None where the executor's eviction does not go by them."""
        info, pool = self.info, self._pool
        if not info.strategy.needs_readers:
            return None
        return ToldReaders(
            pool.demand(info.spec.block_size),
            self._mirror.told_cache,
            lambda request_id: pool.is_held(request_id, info.executor_id),
            self._hashes.of,
            self._clock.monotonic_s(),
        )

    def _path(self, request_id: str) -> Path | None:
        """Of a request of the pool; None for others."""
        prompt = self._pool.prompt(request_id)
        return None if prompt is None else (prompt, self._hashes.of(request_id))

    def _message(self, step: int, schedule: Schedule) -> StepPlan:
        """Q_recv.send(B, t, m), with the prompt of each offline request that enters."""
        entering = [
            entry.request_id
            for entry in schedule.entries
            if entry.kind is OFFLINE and entry.request_id not in self._mirror.table
        ]
        self._rate.enter(len(entering))
        admitted = [self._pool.take(request_id, self.info.executor_id) for request_id in entering]
        paths = ((request_id, path) for request_id in entering if (path := self._path(request_id)) is not None)
        return StepPlan(
            executor_id=self.info.executor_id,
            epoch=self.info.epoch,
            step=step,
            entries=schedule.entries,
            admitted=admitted,
            preempted=schedule.preempted,
            latency_ms=schedule.latency_ms,
            share=schedule.share,
            readers=self._readers.tell(paths) if self._readers is not None and schedule.entries else None,
            wants_all=not self._mirror.knows_all,
        )


def why_never_held_by_any(request: Request, schedulers: Iterable[Scheduler]) -> str:
    """Of those of these executors where offline requests begin, in the words of the largest; empty where one can hold
    it, or there is none."""
    there = (each for each in schedulers if each.is_for_prompts)
    by_size = sorted(there, key=lambda each: each.info.spec.num_blocks * each.info.spec.block_size)
    reasons = [scheduler.why_never_held(request) for scheduler in by_size]
    return reasons[-1] if reasons and all(reasons) else ""
