"""The executor service: registration, the inbox, plans and heartbeats around the step loop."""

import asyncio
import itertools
import logging
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial

from msgspec.structs import replace

from services.executor.handover.desk import HandoverDesk
from services.executor.handover.link import KVLink
from services.executor.handover.links import kv_link_of
from services.executor.handover.pool import PoolMember
from services.executor.publisher import StepPublisher
from services.executor.request_spans import RequestSpans
from services.executor.results import ResultStore
from services.executor.settings import ExecutorSettings
from services.executor.size_chooser import SizeChooser
from services.executor.step_loop import StepLoop, unmeasured
from shared.bus import Bucket, Bus
from shared.bus.lease import Lease
from shared.cancellation import check_cancelled
from shared.clock import Clock, waited_s
from shared.errors import BusError, ConfigError, EngineLostError, LeaseHeldError, LeaseLostError, first_of
from shared.latency.model import LatencyModel
from shared.process.service import Details, Service
from shared.process.tracing import Tracing
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo, Heartbeat, SetDraining
from shared.protocol.handover import SetRole
from shared.protocol.profiling.measurements import REPLACED, MeasuredShape, MeasureShape
from shared.protocol.requests import AbortRequests, HeldRequests, InboxMessage, WhoAsks
from shared.protocol.sampling import FinishReason
from shared.protocol.services import LeaseHolder
from shared.protocol.steps import StepPlan
from shared.protocol.tokens import TokenOutput
from shared.replica.engine import Engine
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.step_sizes import USUAL, largest_sizes
from shared.text.tokenizer import Tokenizer
from shared.watch.probe import gateway_probe
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
IDLE_BEATS = 10  # of which one goes with the state of an executor that holds nothing
DRAIN_LOOK_S = 0.05
RESULTS_DRAIN_S = 5.0
AROUND_HASHES_BYTES = 1024  # of a message that tells of a prefix cache
SIGN_OFF_S = 3.0  # of a process that is killed soon


class ExecutorService(Service):
    """One model replica on the bus. A new instance has a new epoch: it holds nothing of an earlier one."""

    def __init__(
        self,
        bus: Bus,
        settings: ExecutorSettings,
        engine: Engine,
        tokenizer: Tokenizer,
        clock: Clock,
        threads: Executor | None = None,
    ) -> None:
        """``threads``: see ``StepLoop``."""
        self.name = settings.executor_id
        self._bus = bus
        self._engine = engine
        self.info = replace(executor_info(settings, engine.spec), kv_link=kv_link_of(engine))
        _check_role(self.info, self.info.role)
        self._results = ResultStore(bus, subjects.of_model(self.info.spec.model))
        self._tracing = Tracing(settings.trace_endpoint, "executor", self.name)
        self._spans = RequestSpans(self._tracing, self.name, clock)
        self._replica = Replica(
            self.info.limits(),
            engine.spec,
            tokenizer,
            self.info.strategy,
            lambda: clock.monotonic_s() * 1e3,
            partial(waited_s, clock),
            self._spans.came,
        )
        self._tuning = Tuning(bus, on_change=self._on_tuning)
        self._chooser = SizeChooser(settings)
        self._publisher = publisher = StepPublisher(bus, self.info, self._results, self._spans)
        planner = StepPlanner(self._replica, self.name, self.info.epoch, engine.spec.pipeline_depth)
        self._loop = StepLoop(
            self._replica,
            planner,
            engine,
            publisher,
            self._policy_and_model,
            clock,
            settings.step_timeout_s,
            largest=self.info.resized(self.info.largest_sizes).limits(),
            threads=threads,
        )

        def make_desk(link: KVLink) -> HandoverDesk:
            parts = self._replica, self._loop, link, self._tuning, clock
            return HandoverDesk(bus, lambda: self.info, *parts, lambda: not self._draining, self._spans)

        self._pool = PoolMember(lambda: self.info, engine, settings, make_desk)
        self._gateway_ids: dict[str, None] = {}  # who sent requests, or believes so
        self._lease = Lease(bus, self.name, clock)
        self._draining = False
        self._drain_on_stop_s = settings.drain_on_stop_s
        self._clock = clock
        self._offline_waits = ""  # as it was logged last
        self._judged: tuple[Policy | None, LatencyModel | None] = (None, None)  # of what that was said
        self._is_lost = False
        self._executors: Bucket[ExecutorInfo]
        self._registered: int | None = None  # reconnects of the bus before it was

    async def start(self) -> None:
        """Listen, then register: whoever sees the registration can be served. A bus that goes away meanwhile is waited
        for, and one that stores nothing is served without: an engine that is loaded is worth more than a start that is
        soon over. Raises LeaseHeldError where another process has this id."""
        await self._lease.take(self._refuse)
        await self._bus.ensure_streams()
        executor_id = self.info.executor_id
        await self._bus.subscribe(subjects.inbox(executor_id), InboxMessage, self._on_inbox)
        await self._bus.subscribe(subjects.plan(executor_id), StepPlan, self._on_plan)
        await self._bus.serve(subjects.measure(executor_id), MeasureShape, self._on_measure)
        await self._bus.serve(subjects.cache(executor_id), object, self._on_cache)
        await self._bus.serve(subjects.drain(executor_id), SetDraining, self._on_drain)
        await self._bus.serve(subjects.executor_alive(executor_id), WhoAsks | None, self._on_alive)
        await self._join_pool()
        self._executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        await self._bus.serve(subjects.role(executor_id), SetRole, self._on_role)  # which joins and registers, too
        await self._bus.through_reconnects(self._bus.flush)
        await self._try_register()

    async def run(self) -> None:
        """Steps, heartbeats and results, until cancelled; what is here may end first, where the settings give it time.
        Raises EngineLostError where no step can be run any more, and LeaseLostError where the id is not its own any
        more."""
        abort, answers = self._loop.abort, lambda: self._lease.is_answered
        gateways = gateway_probe(self._bus, self._gateways, self._abandon, self._held, abort, answers)
        loops = (
            *(self._lease.keep(), self._loop.run(), self._loop.watch(), self._beat(), self._results.run()),
            *(self._tuning.run(), self._chooser.run(self._register), self._pool.run(), gateways.run()),
            self._stay_registered(),
        )
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(loop) for loop in loops]
                if self._drain_on_stop_s:
                    await self._drain_when_cancelled(tasks)
        except BaseExceptionGroup as errors:
            lost = first_of(errors, EngineLostError, LeaseLostError)
            if lost is None:
                raise
            self._is_lost = True
            raise lost from None

    async def _drain_when_cancelled(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """From then on no requests come, and it returns when those that are here have ended or their time is over; at
        once where one of the ``tasks`` has failed, or the bus is closed."""
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            until_s = self._clock.monotonic_s() + self._drain_on_stop_s
            if not any(map(_has_failed, tasks)):
                await self._on_drain(SetDraining(True))
            while self._replica.has_work and self._clock.monotonic_s() < until_s:
                if self._bus.is_closed or any(map(_has_failed, tasks)):
                    break
                await asyncio.sleep(DRAIN_LOOK_S)
            raise

    def _gateways(self) -> Iterable[str]:
        """Those that have sent requests, also where none of theirs is left or has come."""
        return self._gateway_ids | dict.fromkeys(self._replica.request_ids_of_gateways())

    def _held(self, gateway_id: str) -> HeldRequests:
        request_ids = self._replica.request_ids_of_gateways().get(gateway_id, [])
        return HeldRequests(self.name, self.info.epoch, request_ids)

    def _refuse(self, holder: LeaseHolder) -> None:
        raise LeaseHeldError(f"{self.name} runs already on this bus ({holder}): give this one another --executor-id")

    def _abandon(self, gateway_id: str) -> None:
        """A gateway is gone: nobody reads the tokens of its requests, so they stop."""
        self._gateway_ids.pop(gateway_id, None)
        request_ids = self._held(gateway_id).request_ids
        logger.warning("gateway is gone", extra={"gateway_id": gateway_id, "requests": len(request_ids)})
        self._loop.abort(request_ids)

    async def stop(self) -> None:
        """Sign off, and let results that are not durable yet become so. With a lost engine there is no sign-off: what
        ran then is counted as having failed with its executor; and with a lost id that is another one's to do."""
        self._draining = True
        try:
            if not self._is_lost:
                await self._pool.settle()
                await self._bus.publish(subjects.heartbeat(self.name), self._heartbeat())
                await self._bus.at_the_end(partial(self._executors.delete, self.name), SIGN_OFF_S)
            await self._results.drain(RESULTS_DRAIN_S)
            await self._lease.release()
        except BusError as error:
            logger.warning("could not sign off", extra={"executor_id": self.name, "why": str(error)})
        await self._pool.close()
        self._loop.close()
        await asyncio.to_thread(self._tracing.close)

    def health(self) -> str:
        return self._loop.watchdog.report or self._lease.trouble or "ok"

    def details(self) -> Details:
        totals = self._replica.totals
        return {
            "epoch": self.info.epoch,
            "engine": self.info.spec.engine,
            "model": self.info.spec.model,
            "steps": totals.steps,
            "steps_planned": totals.steps_planned,
            "steps_local": totals.steps_local,
        }

    def _why_offline_waits(self) -> str:
        """Beside online work; empty where it does not. As it was said last, unless something else is known by now."""
        (before, model_before), (policy, model) = self._judged, self._policy_and_model()
        if policy == before and model is model_before:
            return self._offline_waits
        self._judged = policy, model
        least_ms, budget_ms = policy.starves_ms(model), policy.latency_budget_ms
        if least_ms is None:
            return ""
        return (
            f"offline work waits while online requests are there: the budget of {budget_ms:g} ms is below the cost of "
            f"a step ({least_ms:.3g} ms)"
        )

    def _on_tuning(self) -> None:
        if self._tuning.knows_model(self.info.profile_key):
            self.info = self._chooser.choose(self.info, self._tuning.model(self.info.profile_key))
            self._replica.limits = self.info.limits()
        self._loop.wake()

    def _policy_and_model(self) -> tuple[Policy, LatencyModel]:
        return self._tuning.policy(self.info, self._pool.acting), self._tuning.model(self.info.profile_key)

    async def _on_inbox(self, message: InboxMessage) -> None:
        if isinstance(message, AbortRequests):
            self._loop.abort(message.request_ids)
            return
        self._gateway_ids[message.gateway_id] = None
        try:
            self._loop.submit(message)
        except Exception as error:
            output = TokenOutput(message.request_id, [], FinishReason.ERROR, error=f"not taken: {error!r}")
            await self._publisher.tokens(0, [(message.gateway_id, output)])
            raise

    async def _on_plan(self, plan: StepPlan) -> None:
        if plan.epoch == self.info.epoch:
            plan = replace(plan, admitted=[]) if self._draining or self._results.is_full else plan
            self._loop.take_plan(plan)

    async def _on_measure(self, shape: MeasureShape) -> MeasuredShape:
        if shape.epoch not in ("", self.info.epoch):
            return unmeasured(REPLACED)
        return await self._loop.measure(shape)

    async def _on_cache(self, _: object) -> CacheChanges:
        """Who asks has come lately, or has missed something."""
        await self._loop.announce_idle()
        return self._replica.pool.cache_snapshot().within(self._bus.max_payload - AROUND_HASHES_BYTES)

    async def _on_drain(self, order: SetDraining) -> Heartbeat:
        """Everybody hears of it at once. Requests on their way are taken if online; offline ones go back."""
        self._draining = order.draining
        heartbeat = self._heartbeat()
        await self._bus.publish_or_drop(subjects.heartbeat(self.name), heartbeat)
        logger.info("draining" if order.draining else "takes requests", extra={"executor_id": self.name})
        return heartbeat

    async def _on_role(self, order: SetRole) -> Heartbeat:
        """Registered and told to all at once; what is here goes on. Raises ConfigError for a role that it cannot
        have."""
        _check_role(self.info, order.role)
        self.info = replace(self.info, role=order.role)
        await self._join_pool()
        await self._register()
        heartbeat = self._heartbeat()
        await self._bus.publish_or_drop(subjects.heartbeat(self.name), heartbeat)
        logger.info("has a role", extra={"executor_id": self.name, "role": order.role})
        return heartbeat

    async def _register(self) -> None:
        await self._executors.put(self.name, self.info)

    async def _try_register(self) -> bool:
        """False where it is to be tried again later; until then heartbeats tell of it."""
        reconnects = self._bus.reconnects
        try:
            await self._register()
        except BusError as error:
            logger.warning("not registered yet", extra={"executor_id": self.name, "why": str(error)})
            return False
        self._registered = reconnects
        return True

    async def _stay_registered(self) -> None:
        """A bus that comes back may have lost the registration, or have an earlier one again. Where another process has
        the id by then, the registration is that one's."""
        while True:
            check_cancelled()
            if self._registered is not None:
                await self._bus.wait_reconnected(self._registered, None)
            await self._lease.renewed()
            if not await self._try_register():
                await asyncio.sleep(HEARTBEAT_S)

    async def _join_pool(self) -> None:
        if not await self._pool.join():
            self.info = replace(self.info, kv_link="")

    async def _on_alive(self, asks: WhoAsks | None) -> str:
        """A gateway that was taken for gone may be there, and a request of it be lost on its way here."""
        if asks is not None and asks.gateway_id:
            self._gateway_ids[asks.gateway_id] = None
        return self.info.epoch

    async def _beat(self) -> None:
        """Liveness; and, while no step runs, the state again: of one that holds something, or once in a while, for a
        scheduler that has lost it and does not ask. Not while the bus is away: who heard of that afterwards, at once,
        would send requests, and again when it hears that the connection was lost."""
        beats = itertools.count()
        while True:
            reconnects = self._bus.reconnects
            why = self._why_offline_waits()
            if bool(why) != bool(self._offline_waits):
                level = logging.WARNING if why else logging.INFO
                logger.log(level, why or "offline work runs beside online work again", extra={"executor_id": self.name})
            self._offline_waits = why
            try:
                if not self._bus.is_away:
                    await self._bus.publish(subjects.heartbeat(self.name), self._heartbeat())
                if self._replica.has_work or not next(beats) % IDLE_BEATS:
                    await self._loop.announce_idle()
            except BusError as error:
                logger.warning("no heartbeat", extra={"executor_id": self.name, "why": str(error)})
            await self._bus.wait_reconnected(reconnects, HEARTBEAT_S)

    def _heartbeat(self) -> Heartbeat:
        table = self._replica.table
        counters = self._replica.counters()
        counters.messages_dropped, counters.messages_failed = self._bus.num_dropped, self._bus.num_failed
        return Heartbeat(
            info=self.info,
            counters=counters,
            draining=self._draining,
            online_waiting=len(table.waiting(Kind.ONLINE)),
            online_running=len(table.running(Kind.ONLINE)),
            offline_waiting=len(table.waiting(Kind.OFFLINE)),
            offline_running=len(table.running(Kind.OFFLINE)),
            num_free_blocks=self._replica.pool.num_free,
            online_work=self._replica.online_work(),
            reconnects=self._bus.reconnects,
            blocks=self._replica.pool.owners(),
            num_wanted_blocks=self._replica.pool.eviction.num_wanted,
            num_reserved_blocks=self._replica.num_reserved_blocks,
            offline_waits=self._offline_waits,
            step_ms=self._loop.take_step_ms(),
            handover_ms=self._pool.take_handover_ms(),
            slow_step=self._loop.watchdog.report,
        )


def executor_info(settings: ExecutorSettings, spec: EngineSpec) -> ExecutorInfo:
    """The registration of a new incarnation. What of its steps' sizes is not given is chosen when a model is there."""
    sizes, largest = settings.given_or(USUAL), settings.given_or(largest_sizes(spec.device))
    key = f"{spec.model}.{spec.engine}.{spec.device}.{spec.dtype}"
    return ExecutorInfo(
        executor_id=settings.executor_id,
        epoch=uuid.uuid4().hex,
        pid=os.getpid(),
        profile_key=re.sub(r"[^A-Za-z0-9_=.-]", "-", key),
        spec=spec,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        strategy=settings.strategy,
        role=Role(settings.role),
        largest=None if settings.gives_sizes else largest,
    )


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _check_role(info: ExecutorInfo, role: Role) -> None:
    if role is not Role.MIXED and info.strategy.why_no_pools:
        raise ConfigError(f"role {role}: {info.strategy.why_no_pools}")
