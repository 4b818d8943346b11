"""The offline-queue service: the pool, the batches, and a scheduler for each executor that serves its model."""

import asyncio
import logging

from services.offline_queue.attached import Attached, AttachedExecutors
from services.offline_queue.batches.file_sweep import FileSweep
from services.offline_queue.batches.lost_batches import LostBatches
from services.offline_queue.batches.manager import BatchManager
from services.offline_queue.copies import StoredCopies
from services.offline_queue.flex_desk import FlexDesk
from services.offline_queue.hearing import Hearing
from services.offline_queue.order_details import order_details
from services.offline_queue.order_memory import OrderMemory
from services.offline_queue.registration_sweep import RegistrationSweep
from services.offline_queue.settings import OfflineQueueSettings
from shared.bus import Bus, Entry, Subscription
from shared.bus.lease import Lease
from shared.clock import Clock
from shared.errors import BusError, LeaseLostError, first_of
from shared.latency.model import LatencyModel
from shared.openai.served_model import ServedModel
from shared.process.service import Details, Service
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.flex import FlexAnswer, FlexMessage, FlexSubmit
from shared.protocol.handover import Taken
from shared.protocol.learnt import LearntBy
from shared.protocol.offline import OfflineSample
from shared.protocol.requests import AbortRequests, InboxMessage
from shared.protocol.services import OFFLINE_QUEUE as NAME
from shared.protocol.services import STANDBY, LeaseHolder, queue_name
from shared.protocol.steps import StepStarted
from shared.protocol.tokens import StepTokens
from shared.replica.offline_pool import OfflinePool
from shared.replica.outputs import Ended, final_output
from shared.replica.scheduler import Scheduler, why_never_held_by_any
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.policy import Policy
from shared.scheduling.request import Request
from shared.text.tokenizer import Tokenizer
from shared.watch.probe import executor_probe
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

SAMPLE_SIZE = 256
CACHE_WAIT_S = 2.0
SETTLE_S = 5.0  # so long after an executor came or went, another may come that is larger
SILENCE_S = 5.0  # an executor that is silent for so long holds nothing any more, as far as we know


class OfflineQueueService(Service):
    """Plans go out as step messages come in; nothing here ever stands on the path of a step. At its end only what was
    learnt is to be kept: the pool is durable, and executors go on with what they hold. One process is at work for a
    model: another one waits until that is gone, and nothing is sent any more by one that may have been replaced."""

    def __init__(
        self,
        bus: Bus,
        settings: OfflineQueueSettings,
        model: ServedModel,
        order: OfflineOrder,
        tokenizer: Tokenizer,
        clock: Clock,
        learnt_by: LearntBy,
    ) -> None:
        """``order``: an empty one, the strategy's; ``learnt_by``: as what it remembers."""
        self._bus = bus
        self._model_name = settings.model_name
        self._strategy = settings.strategy
        self._clock = clock
        self._own_name = queue_name(settings.model_name, bool(model.others))
        self._of_model = subjects.of_model(settings.model_name)
        self._lease = Lease(bus, f"{NAME}.{self._of_model.model}", clock)
        self._hearing = Hearing(lambda: self._lease.is_answered, clock)
        self._holder: LeaseHolder | None = None  # another one that is at work
        self._is_at_work = False
        self._wake = asyncio.Event()
        self._has_work = False  # for executors that wait
        self._has_spoken: dict[str, None] = {}  # since plans were made
        self._pool = OfflinePool(
            FairShare(order, self._share_of), self._on_work, self._on_discard, lambda each: self._batches.is_open(each)
        )
        self._memory = OrderMemory(bus, self._pool, learnt_by)
        self._keep_batches_s = settings.keep_batches_days * 24 * 3600.0
        pool_bytes = settings.pool_mb * 1024**2
        self._batches = BatchManager(
            bus, settings.model_name, tokenizer, model, self._pool, clock, pool_bytes, settings.max_failures
        )
        self._flex = FlexDesk(
            self._pool, clock, self._hearing, settings.max_flex_requests, self._strategy.serves_offline
        )
        self._tuning = Tuning(bus, self._on_work)
        self._attached = AttachedExecutors()
        self._registrations = RegistrationSweep(bus, clock)
        self._num_awaited = 0  # executors came or went; others may be about to
        self._registering = asyncio.Lock()  # heartbeats attach executors as well
        self._has_gap = asyncio.Event()  # in what is known of an executor's prefix cache
        self._aborts: dict[str, dict[str, None]] = {}
        self._probe = executor_probe(
            bus, lambda: self._attached.at_work(self._pool), self._on_gone, lambda: not self._pool.has_running
        )
        self._taken: Subscription

    @property
    def name(self) -> str:  # type: ignore[override]
        """Whoever asks for the offline-queue means the one at work."""
        return self._own_name if self._is_at_work else f"{self._own_name}{STANDBY}"

    async def run(self) -> None:
        """Until cancelled. Raises LeaseLostError where another one is at work by now."""
        try:
            await self._lease.take(self._on_held)
            self._holder = None
            self._bus.fence(self._lease.may_send)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._lease.keep())
                await self._begin()
                await self._lease.renewed()  # the bus may have been away meanwhile
                self._is_at_work = True
                logger.info("at work", extra={"service": self.name})
                self._work(group)
        except BaseExceptionGroup as errors:
            if lost := first_of(errors, LeaseLostError):
                raise lost from None
            raise

    async def stop(self) -> None:
        """Let another one go on at once, with what was learnt here."""
        if self._is_at_work:
            await self._memory.keep()
            await self._batches.stop()
        await self._lease.release()

    def health(self) -> str:
        return f"waits: {self._holder} is at work" if self._holder else "ok"

    async def _begin(self) -> None:
        """Recover the pool before any executor is heard, so that what executors hold is recognized; before that, what
        its order knows."""
        await self._memory.recall()
        await self._batches.start()
        self._taken = await self._bus.subscribe(subjects.TAKEN, Taken, self._on_taken)
        await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)
        await self._bus.serve(self._of_model.sample, object, self._on_sample)
        await self._bus.serve(self._of_model.flex, FlexMessage, self._on_flex)
        await self._bus.subscribe(self._of_model.flex_drop, AbortRequests, self._on_flex_drop)

    def _work(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._batches.run())
        group.create_task(FileSweep(self._batches.tools, self._batches.is_being_read, self._keep_batches_s).run())
        group.create_task(LostBatches(self._batches.tools).run())
        group.create_task(self._registrations.run())
        group.create_task(StoredCopies(self._bus).run())
        group.create_task(self._flex.run())
        group.create_task(self._memory.run())
        group.create_task(self._tuning.run())
        group.create_task(self._follow_executors())
        group.create_task(self._plan())
        group.create_task(self._watch_silence())
        group.create_task(self._fill_gaps())
        group.create_task(self._probe.run())
        if self._strategy.offline_qps:
            group.create_task(self._release(1.0 / self._strategy.offline_qps))

    def details(self) -> Details:
        batches = self._batches.stats()
        stats = [attached.scheduler.stats() for attached in self._attached.values()]
        plans = sum(each.plans for each in stats)
        return {
            "model": self._model_name,
            "waiting": self._pool.num_waiting + batches.lines_open - batches.lines_held,
            "running": len(self._pool) - self._pool.num_waiting,
            "batches": batches.batches,
            "batches_validating": batches.validating,
            "lines_done": batches.lines_done,
            "flex": len(self._flex),
            "pool_mb": batches.held_bytes / 1024**2,
            "executors": len(self._attached),
            "preset": self._strategy.preset,
            "offline_order": self._strategy.offline_order,
            "plans": plans,
            "plan_ms_mean": sum(each.plan_ms_mean * each.plans for each in stats) / plans if plans else 0.0,
            "plan_ms_max": max((each.plan_ms_max for each in stats), default=0.0),
            **order_details(self._pool.details(), self._known_model()),
        }

    def _known_model(self) -> LatencyModel | None:
        """Of the first executor that has one; as a rule they are alike."""
        keys = (attached.scheduler.info.profile_key for attached in self._attached.values())
        return next((self._tuning.model(key) for key in keys if self._tuning.knows_model(key)), None)

    async def _on_sample(self, _: object) -> OfflineSample:
        return OfflineSample(self._pool.sample(SAMPLE_SIZE))

    async def _on_flex(self, message: FlexMessage) -> FlexAnswer:
        return self._flex.submit(message) if isinstance(message, FlexSubmit) else self._flex.hold(message)

    async def _on_flex_drop(self, message: AbortRequests) -> None:
        self._flex.drop(message.request_ids)

    def _on_held(self, holder: LeaseHolder) -> None:
        if holder != self._holder:
            logger.warning("another offline-queue is at work, this one waits", extra={"holder": str(holder)})
        self._holder = holder

    # Executors come and go

    async def _follow_executors(self) -> None:
        executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        async for entry in executors.watch():
            if entry is None:
                continue
            if entry.value is not None and entry.value.executor_id != entry.key:
                logger.warning(
                    "a registration is not of its key", extra={"key": entry.key, "of": entry.value.executor_id}
                )
                continue
            await self._on_registration(entry)

    async def _on_registration(self, entry: Entry[ExecutorInfo]) -> None:
        async with self._registering:
            await self._register(entry)

    async def _register(self, entry: Entry[ExecutorInfo]) -> None:
        attached = self._attached.get(entry.key)
        info = entry.value
        if attached is not None and info is not None and attached.scheduler.info.epoch == info.epoch:
            if attached.update(info):
                self._on_work()
            return
        if attached is not None:
            lost = await self._detach(entry.key)
            if info is not None:  # it came back without having signed off
                await self._batches.add_losses(lost, f"executor {entry.key} was lost")
        if info is not None and info.spec.model == self._model_name:
            await self._attach(info)

    async def _attach(self, info: ExecutorInfo) -> None:
        def tuning() -> tuple[Policy, LatencyModel]:
            role = self._attached.acting_role(info.executor_id)
            return self._tuning.policy(info, role), self._tuning.model(info.profile_key)

        scheduler = Scheduler(info, self._pool, tuning, self._clock, self._why_hopeless)
        attached = Attached(scheduler, self._clock.monotonic_s())
        self._attached[info.executor_id] = attached

        async def on_inbox(message: InboxMessage) -> None:
            scheduler.on_inbox(message)

        async def on_step(message: StepStarted) -> None:
            await self._taken.caught_up()  # what it has taken is its own by now
            abort = scheduler.on_step(message)
            self._has_spoken[info.executor_id] = None
            self._wake.set()
            if abort is not None:
                await self._bus.publish_or_drop(subjects.inbox(info.executor_id), abort)
            if scheduler.needs_cache:
                self._has_gap.set()

        self._await_others()
        attached.subscriptions = [
            await self._bus.subscribe(subjects.inbox(info.executor_id), InboxMessage, on_inbox),
            await self._bus.subscribe(subjects.step(info.executor_id), StepStarted, on_step),
        ]
        logger.info("executor attached", extra={"executor_id": info.executor_id, "epoch": info.epoch})

    async def _detach(self, executor_id: str) -> list[str]:
        """Returns what it ran when it was last heard."""
        attached = self._attached.pop(executor_id)
        self._await_others()
        for subscription in attached.subscriptions:
            await subscription.stop()
        lost = attached.lost + self._pool.release(executor_id)
        logger.info("executor detached", extra={"executor_id": executor_id, "epoch": attached.scheduler.info.epoch})
        return lost

    async def _begin_anew(self, attached: Attached) -> None:
        """With the same incarnation, of which nothing is known from here on but what it tells next."""
        info = attached.scheduler.info
        async with self._registering:
            if self._attached.get(info.executor_id) is attached:
                await self._detach(info.executor_id)
                await self._attach(info)

    def _await_others(self) -> None:
        def settle() -> None:
            self._num_awaited -= 1
            self._on_work()

        self._num_awaited += 1
        asyncio.get_running_loop().call_later(SETTLE_S, settle)

    def _why_hopeless(self, request: Request) -> str:
        if self._num_awaited:
            return ""
        return why_never_held_by_any(request, (each.scheduler for each in self._attached.values()))

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """It may be one whose registration was overwritten or deleted by another one."""
        info = heartbeat.info
        self._registrations.on_heartbeat(info.executor_id)
        attached = self._attached.get(info.executor_id)
        if (attached is None or attached.is_silent) and not heartbeat.draining:
            await self._on_registration(Entry(info.executor_id, info, 0))
            attached = self._attached.get(info.executor_id)
        if attached is not None and attached.scheduler.info.epoch == info.epoch:
            attached.seen_s = self._clock.monotonic_s()
            attached.is_silent = False
            attached.lost.clear()
            was_taking, attached.scheduler.takes_requests = attached.scheduler.takes_requests, not heartbeat.draining
            if attached.update(info) or was_taking == heartbeat.draining:
                self._on_work()

    async def _on_taken(self, taken: Taken) -> None:
        if not self._attached.move(taken, self._pool):
            abort = AbortRequests([taken.request_id])
            await self._bus.publish_or_drop(subjects.inbox(taken.taker.executor_id), abort)

    async def _watch_silence(self) -> None:
        """What a silent executor held waits again; if it speaks again, its next step message settles who has what."""
        while True:
            await asyncio.sleep(1.0)
            for attached in self._attached.values():
                if not attached.is_silent and self._hearing.silent_s(attached.seen_s) > SILENCE_S:
                    self._give_up(attached, "silent")

    def _on_gone(self, info: ExecutorInfo) -> None:
        attached = self._attached.get(info.executor_id)
        if attached is not None and attached.scheduler.info.epoch == info.epoch:
            self._give_up(attached, "left the bus")

    def _give_up(self, attached: Attached, why: str) -> None:
        executor_id = attached.scheduler.info.executor_id
        attached.is_silent = True
        attached.lost = self._pool.release(executor_id)
        logger.warning("executor is silent", extra={"executor_id": executor_id, "why": why})

    async def _fill_gaps(self) -> None:
        """Ask executors for all that their prefix caches have, where some that they told was lost or came too early."""
        while True:
            await self._has_gap.wait()
            self._has_gap.clear()
            for attached in list(self._attached.values()):
                scheduler = attached.scheduler
                if not scheduler.needs_cache or attached.is_silent:
                    continue
                subject = subjects.cache(scheduler.info.executor_id)
                try:
                    scheduler.on_cache(await self._bus.request(subject, {}, CacheChanges, CACHE_WAIT_S))
                except BusError as error:
                    why = {"executor_id": scheduler.info.executor_id, "why": str(error)}
                    logger.info("prefix cache not known", extra=why)

    async def _release(self, period_s: float) -> None:
        """At a fixed rate an idle executor gets work when its time has come, not when something else happens."""
        while True:
            await asyncio.sleep(period_s)
            self._on_work()

    # Plans

    def _on_work(self) -> None:
        self._has_work = True
        self._wake.set()

    def _share_of(self, batch_id: str) -> Share:
        return self._flex.share_of(batch_id) or self._batches.share_of(batch_id)

    def _on_discard(self, executor_id: str, request_ids: list[str]) -> None:
        if (attached := self._attached.get(executor_id)) is None:
            return
        if held := [request_id for request_id in request_ids if attached.scheduler.holds(request_id)]:
            self._aborts.setdefault(executor_id, {}).update(dict.fromkeys(held))
            self._on_work()

    async def _plan(self) -> None:
        """Beside the messages that come in: where several words of an executor wait, it plans after the last."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            has_work, self._has_work = self._has_work, False
            spoken, self._has_spoken = self._has_spoken, {}
            aborts, self._aborts = self._aborts, {}
            for executor_id, request_ids in aborts.items():
                await self._bus.publish_or_drop(subjects.inbox(executor_id), AbortRequests(list(request_ids)))
            for executor_id in list(self._attached) if has_work else spoken:
                attached = self._attached.get(executor_id)
                if attached is None or attached.is_silent:
                    continue
                try:
                    plans = attached.scheduler.plan()
                except Exception:  # of what an executor has told of itself: no other is to suffer from it
                    logger.exception(
                        "no plan can be made, the executor is begun with anew", extra={"executor_id": executor_id}
                    )
                    await self._begin_anew(attached)
                    continue
                for plan in plans:
                    await self._bus.publish_or_drop(subjects.plan(executor_id), plan)
                if refused := attached.scheduler.take_refused():
                    await self._refuse(refused)
                    self._on_work()
                await asyncio.sleep(0)  # so that those behind it are heard before they are planned for
            if self._pool.has_running:
                self._probe.look()

    async def _refuse(self, refused: list[Ended]) -> None:
        """What no executor can hold ends with the error that an executor would have ended it with."""
        for ended in refused:
            request_id, gateway_id = ended.sequence.request_id, ended.sequence.gateway_id
            if not gateway_id:
                self._batches.give_up(request_id, ended.error)
                continue
            self._flex.drop([request_id])
            tokens = StepTokens(self.name, "", 0, [final_output(ended)])
            await self._bus.publish_or_drop(subjects.tokens(gateway_id), tokens)
