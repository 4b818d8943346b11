"""Executors come and go: each that serves the model has a scheduler here, which hears what it says."""

import asyncio
import logging

from services.offline_queue.attached import Attached, AttachedExecutors
from services.offline_queue.batches.manager import BatchManager
from services.offline_queue.hearing import Hearing
from services.offline_queue.plans_due import PlansDue
from services.offline_queue.registration_sweep import RegistrationSweep
from shared.bus import Bus, Entry, Subscription
from shared.clock import Clock
from shared.errors import BusError
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import MAX_PLAN_BYTES, Scheduler, why_never_held_by_any
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.handover import Taken
from shared.protocol.requests import AbortRequests, InboxMessage
from shared.protocol.steps import StepStarted
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.policy import Policy
from shared.scheduling.request import Request
from shared.watch.probe import executor_probe
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

CACHE_WAIT_S = 2.0
SETTLE_S = 5.0  # so long after an executor came or went, another may come that is larger
SILENCE_S = 5.0  # an executor that is silent for so long holds nothing any more, as far as we know
LOOK_S = 1.0  # between two looks for such


class ExecutorDesk:
    """Keeps ``AttachedExecutors`` as they are on the bus, and takes back from the lost what they held."""

    def __init__(
        self,
        bus: Bus,
        model_name: str,
        attached: AttachedExecutors,
        pool: OfflinePool,
        batches: BatchManager,
        tuning: Tuning,
        due: PlansDue,
        hearing: Hearing,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._model_name = model_name
        self._attached = attached
        self._pool = pool
        self._batches = batches
        self._tuning = tuning
        self._due = due
        self._hearing = hearing
        self._clock = clock
        self._registrations = RegistrationSweep(bus, clock)
        self._num_awaited = 0  # executors came or went; others may be about to
        self._registering = asyncio.Lock()  # heartbeats attach executors as well
        self._has_gap = asyncio.Event()  # in what is known of an executor, or of its prefix cache
        self._probe = executor_probe(
            bus, lambda: attached.at_work(pool), self._on_gone, lambda: not self._pool.has_running
        )
        self._taken: Subscription

    async def start(self) -> None:
        """Raises BusError."""
        self._taken = await self._bus.subscribe(subjects.TAKEN, Taken, self._on_taken)
        await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)

    def work(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._registrations.run())
        group.create_task(self._follow())
        group.create_task(self._watch_silence())
        group.create_task(self._fill_gaps())
        group.create_task(self._probe.run())

    def look(self) -> None:
        """Plans went out: somebody may run something by now."""
        if self._pool.has_running:
            self._probe.look()

    async def begin_anew(self, attached: Attached) -> None:
        """With the same incarnation, of which nothing is known from here on but what it tells next. It is not asked
        before its next heartbeat: what it says may be the same again."""
        info = attached.scheduler.info
        async with self._registering:
            if self._attached.get(info.executor_id) is attached:
                await self._detach(info.executor_id)
                await self._attach(info, was_asked=True)

    # By their registrations

    async def _follow(self) -> None:
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
                self._due.on_work()
            return
        if attached is not None:
            lost = await self._detach(entry.key)
            if info is not None:  # it came back without having signed off
                await self._batches.add_losses(lost, f"executor {entry.key} was lost")
        if info is not None and info.spec.model == self._model_name:
            await self._attach(info)

    async def _attach(self, info: ExecutorInfo, was_asked: bool = False) -> None:
        def tuning() -> tuple[Policy, LatencyModel]:
            role = self._attached.acting_role(info.executor_id)
            return self._tuning.policy(info, role), self._tuning.model(info.profile_key)

        max_plan_bytes = min(MAX_PLAN_BYTES, self._bus.max_payload // 2)
        scheduler = Scheduler(info, self._pool, tuning, self._clock, self._why_hopeless, max_plan_bytes)
        attached = Attached(scheduler, self._clock.monotonic_s(), was_asked=was_asked)
        self._attached[info.executor_id] = attached

        async def on_inbox(message: InboxMessage) -> None:
            scheduler.on_inbox(message)

        async def on_step(message: StepStarted) -> None:
            await self._taken.caught_up()  # what it has taken is its own by now
            abort = scheduler.on_step(message)
            if message.epoch == info.epoch:
                attached.is_to_tell, attached.has_spoken = False, True
                attached.lost.clear()
                self._hear_of(attached)
            self._due.on_word(info.executor_id)
            if abort is not None:
                await self._bus.publish_or_drop(subjects.inbox(info.executor_id), abort)
            if scheduler.needs_cache:
                self._has_gap.set()

        self._await_others()
        attached.subscriptions = [
            await self._bus.subscribe(subjects.inbox(info.executor_id), InboxMessage, on_inbox),
            await self._bus.subscribe(subjects.step(info.executor_id), StepStarted, on_step),
        ]
        self._has_gap.set()
        logger.info("executor attached", extra={"executor_id": info.executor_id, "epoch": info.epoch})

    async def _detach(self, executor_id: str) -> list[str]:
        """Returns what it ran when it last said so, each once: it may have been given it again."""
        attached = self._attached.pop(executor_id)
        self._await_others()
        for subscription in attached.subscriptions:
            await subscription.stop()
        lost = list(dict.fromkeys(attached.lost + self._pool.release(executor_id)))
        logger.info("executor detached", extra={"executor_id": executor_id, "epoch": attached.scheduler.info.epoch})
        return lost

    def _await_others(self) -> None:
        def settle() -> None:
            self._num_awaited -= 1
            self._due.on_work()

        self._num_awaited += 1
        asyncio.get_running_loop().call_later(SETTLE_S, settle)

    def _why_hopeless(self, request: Request) -> str:
        if self._num_awaited:
            return ""
        return why_never_held_by_any(request, (each.scheduler for each in self._attached.values()))

    # By what they say

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """It may be one whose registration was overwritten or deleted by another one."""
        info = heartbeat.info
        self._registrations.on_heartbeat(info.executor_id)
        attached = self._attached.get(info.executor_id)
        if (attached is None or attached.is_silent) and not heartbeat.draining:
            await self._on_registration(Entry(info.executor_id, info, 0))
            attached = self._attached.get(info.executor_id)
        if attached is not None and attached.scheduler.info.epoch == info.epoch:
            self._hear_of(attached)
            was_taking, attached.scheduler.takes_requests = attached.scheduler.takes_requests, not heartbeat.draining
            if attached.update(info) or was_taking == heartbeat.draining:
                self._due.on_work()
            self._compare(attached, heartbeat)

    def _compare(self, attached: Attached, heartbeat: Heartbeat) -> None:
        """An executor that holds nothing says so once. Where that is not what is known of it, its word was lost, or a
        plan, or what it held."""
        if not heartbeat.num_held and not attached.has_spoken and not attached.scheduler.knows_idle:
            attached.is_to_tell = True
        attached.has_spoken = attached.was_asked = False
        if attached.is_to_tell or attached.scheduler.needs_cache:
            self._has_gap.set()

    def _hear_of(self, attached: Attached) -> None:
        """By a step as by a heartbeat: who holds something by its own word is taken for silent again, or it would hold
        that for ever."""
        attached.seen_s = self._clock.monotonic_s()
        if attached.is_silent:
            attached.is_silent = False
            self._due.on_work()

    async def _on_taken(self, taken: Taken) -> None:
        if not self._attached.move(taken, self._pool):
            abort = AbortRequests([taken.request_id])
            await self._bus.publish_or_drop(subjects.inbox(taken.taker.executor_id), abort)

    async def _watch_silence(self) -> None:
        """What a silent executor held waits again; if it speaks again, its next step message settles who has what."""
        while True:
            await asyncio.sleep(LOOK_S)
            for attached in self._attached.values():
                if not attached.is_silent and self._hearing.silent_s(attached.seen_s) > SILENCE_S:
                    self._give_up(attached, "silent")

    def _on_gone(self, info: ExecutorInfo) -> None:
        attached = self._attached.get(info.executor_id)
        if attached is not None and attached.scheduler.info.epoch == info.epoch and not attached.is_silent:
            self._give_up(attached, "left the bus")

    def _give_up(self, attached: Attached, why: str) -> None:
        executor_id = attached.scheduler.info.executor_id
        attached.is_silent = True
        attached.lost += self._pool.release(executor_id)
        self._due.on_work()  # others may act as something else from here on
        logger.warning("executor is silent", extra={"executor_id": executor_id, "why": why})

    async def _fill_gaps(self) -> None:
        """Ask executors for all that their prefix caches have, where some that they told was lost or came too early.
        Who is asked says again what it holds, if it runs nothing. Nobody is asked twice between two heartbeats."""
        while True:
            await self._has_gap.wait()
            self._has_gap.clear()
            for attached in list(self._attached.values()):
                scheduler = attached.scheduler
                if attached.is_silent or attached.was_asked or not (scheduler.needs_cache or attached.is_to_tell):
                    continue
                attached.was_asked = True
                subject = subjects.cache(scheduler.info.executor_id)
                try:
                    scheduler.on_cache(await self._bus.request(subject, {}, CacheChanges, CACHE_WAIT_S))
                except BusError as error:
                    why = {"executor_id": scheduler.info.executor_id, "why": str(error)}
                    logger.info("prefix cache not known", extra=why)
