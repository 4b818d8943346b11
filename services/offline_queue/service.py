"""The offline-queue service: the pool, the batches, and a scheduler for each executor that serves its model."""

import asyncio
import logging

from services.offline_queue.attached import AttachedExecutors
from services.offline_queue.batches.file_sweep import FileSweep
from services.offline_queue.batches.lost_batches import LostBatches
from services.offline_queue.batches.manager import BatchManager
from services.offline_queue.copies import StoredCopies
from services.offline_queue.executor_desk import ExecutorDesk
from services.offline_queue.flex_desk import FlexDesk
from services.offline_queue.hearing import Hearing
from services.offline_queue.order_details import order_details
from services.offline_queue.order_memory import OrderMemory
from services.offline_queue.planning import Planning
from services.offline_queue.plans_due import PlansDue
from services.offline_queue.settings import OfflineQueueSettings
from shared.bus import Bus
from shared.bus.lease import Lease
from shared.clock import Clock
from shared.errors import LeaseLostError, first_of
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.openai.served_model import ServedModel
from shared.process.service import Details, Service
from shared.protocol import subjects
from shared.protocol.offline.flex import FlexAnswer, FlexMessage, FlexSubmit
from shared.protocol.offline.learnt import LearntBy
from shared.protocol.offline.requests import OfflineSample
from shared.protocol.requests import AbortRequests
from shared.protocol.services import STANDBY, LeaseHolder, queue_lease, queue_name
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.share import Share
from shared.settings.other_models import parse_other_models
from shared.text.tokenizer import Tokenizer
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

SAMPLE_SIZE = 256


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
        self._own_name = queue_name(settings.model_name, bool(model.others))
        self._of_model = subjects.of_model(settings.model_name)
        self._lease = Lease(bus, queue_lease(self._of_model.model), clock)
        hearing = Hearing(lambda: self._lease.is_answered, clock)
        self._holder: LeaseHolder | None = None  # another one that is at work
        self._is_at_work = False
        self._attached = AttachedExecutors()
        due = PlansDue(self._attached)
        self._pool = OfflinePool(
            FairShare(order, self._share_of), due.on_work, due.on_discard, lambda each: self._batches.is_open(each)
        )
        self._memory = OrderMemory(bus, self._pool, learnt_by)
        self._keep_batches_s = settings.keep_batches_days * 24 * 3600.0
        pool_bytes = settings.pool_mb * 1024**2
        self._batches = BatchManager(
            bus,
            settings.model_name,
            tokenizer,
            model,
            self._pool,
            clock,
            pool_bytes,
            settings.max_failures,
            [each.name for each in parse_other_models(settings.other_models)],
        )
        self._flex = FlexDesk(self._pool, clock, hearing, settings.max_flex_requests, self._strategy.serves_offline)
        self._tuning = Tuning(bus, due.on_work)
        self._desk = ExecutorDesk(
            bus,
            settings.model_name,
            self._attached,
            self._pool,
            self._batches,
            self._tuning,
            due,
            hearing,
            clock,
        )
        self._planning = Planning(bus, self._own_name, self._attached, due, self._desk, self._batches, self._flex)

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
        """Let another one go on at once, with what was learnt here; a bus that is silent is not waited for."""
        if self._is_at_work:
            await asyncio.gather(self._memory.stop(), self._batches.stop())
        await self._lease.release()

    def health(self) -> str:
        return f"waits: {self._holder} is at work" if self._holder else self._lease.trouble or "ok"

    async def _begin(self) -> None:
        """Recover the pool before any executor is heard, so that what executors hold is recognized; before that, what
        its order knows."""
        await self._memory.recall()
        await self._batches.start()
        await self._desk.start()
        await self._bus.serve(self._of_model.sample, object, self._on_sample)
        await self._bus.serve(self._of_model.flex, FlexMessage, self._on_flex)
        await self._bus.subscribe(self._of_model.flex_drop, AbortRequests, self._on_flex_drop)

    def _work(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._batches.run())
        group.create_task(FileSweep(self._batches.tools, self._batches.is_being_read, self._keep_batches_s).run())
        group.create_task(LostBatches(self._batches.tools).run())
        group.create_task(StoredCopies(self._bus).run())
        group.create_task(self._flex.run())
        group.create_task(self._memory.run())
        group.create_task(self._tuning.run())
        self._desk.work(group)
        group.create_task(self._planning.run())
        if self._strategy.offline_qps:
            group.create_task(self._planning.release(1.0 / self._strategy.offline_qps))

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

    def _share_of(self, batch_id: str) -> Share:
        return self._flex.share_of(batch_id) or self._batches.share_of(batch_id)
