"""The part that an executor takes in pools: what it acts as, what it gives to others, takes from them and asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from services.executor.handover.giving import Giving
from services.executor.handover.link import KVLink
from services.executor.handover.meeting import Meetings
from services.executor.handover.peers import Peers, place_of
from services.executor.handover.pulling import Pulling
from services.executor.handover.pushing import Pushing
from services.executor.handover.taking import Taking
from services.executor.request_spans import RequestSpans
from services.executor.step_loop import StepLoop
from shared.bus import Bus, Subscription
from shared.cancellation import check_cancelled, wait_set
from shared.clock import Clock
from shared.latency.histogram import LatencyHistogram
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.handover import AskKVAddress, Carried, Offer, OfferMessage, Place, Pull
from shared.replica.replica import Replica
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.watch.tuning import Tuning

logger = logging.getLogger(__name__)

MOST_GIVEN = 16  # requests that are on their way to others at a time; more would only be held for longer
TICK_S = 0.5
TRY_AGAIN_TICKS = 2  # until those that nobody took are offered again
SETTLE_S = 5.0  # at the end, for what is on its way
TAKES_NONE = "it takes no requests"


class HandoverDesk:
    """Made when an executor is to be of a pool; it hears of the others only while that is so. All beside the step loop:
    that calls ``_before_packing``, which awaits nothing, and is woken."""

    def __init__(
        self,
        bus: Bus,
        info: Callable[[], ExecutorInfo],
        replica: Replica,
        loop: StepLoop,
        link: KVLink,
        tuning: Tuning,
        clock: Clock,
        takes_requests: Callable[[], bool],
        spans: RequestSpans,
    ) -> None:
        """``info``: the registration as it is now; ``takes_requests``: it is neither draining nor about to stop."""
        self._bus = bus
        self._info = info
        self._replica = replica
        self._loop = loop
        self._link = link
        self._tuning = tuning
        self._takes_requests = takes_requests
        self._place = place = place_of(info())
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeats: Subscription | None = None
        self._is_settling = False
        self.acting = Role.MIXED
        self.peers = Peers(place, info().spec.model, clock)
        handovers = replica.handovers
        self._meetings = Meetings(bus, link, clock, self._spawn, self._review)
        self._giving = Giving(bus, place, handovers, self.peers, clock, replica.totals, spans)
        self._taking = Taking(
            bus, place, handovers, link, self._spawn, self._why_not, self._on_taken, self._meetings.part, spans
        )
        self._pushing = Pushing(self.peers, link, self._giving, tuning)
        self._pulling = Pulling(
            place, replica, self.peers, link, lambda: (tuning.policy(info()), tuning.model(info().profile_key)), clock
        )

    # Its life

    async def start(self) -> None:
        """Others reach it from here on."""
        executor_id = self._place.executor_id
        await self._bus.serve(subjects.offer(executor_id), OfferMessage, self._taking.answer, is_concurrent=True)
        await self._bus.serve(subjects.kv_address(executor_id), AskKVAddress, self._meetings.answer)
        await self._bus.subscribe(subjects.pull(executor_id), Pull, self._on_pull)
        await self._follow_role()

    async def run(self) -> None:
        """Until cancelled: what is to be done from time to time. Raises EngineLostError where its KV is gone."""
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            check_cancelled()
            tick += 1
            self._link.check()
            await self._follow_role()
            if self._heartbeats is None:
                continue
            if gone := self.peers.fall_silent():
                for place in gone:
                    self._on_gone(place)
                self._review()
            self._pulling.forget_ended()
            if tick % TRY_AGAIN_TICKS == 0:
                self._replica.handovers.push_again()
            if self._may_have_something_to_do():
                self._loop.wake()

    async def settle(self) -> None:
        """Nothing leaves or comes from here on; what is on its way has a while to arrive, on whichever side."""
        self._is_settling = True
        self._review()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SETTLE_S
        await wait_set(self._taking.answered, SETTLE_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, until_s - loop.time()))

    async def close(self) -> None:
        """The memory is about to be freed."""
        self._loop.look_before_packing(None)
        self._giving.give_up()
        await self._link.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_S)

    def take_handover_ms(self) -> LatencyHistogram:
        """How long requests were held that have gone since the last call."""
        return self._giving.take_handover_ms()

    async def _follow_role(self) -> None:
        """One that has become mixed again listens to nobody, once nothing is on its way."""
        is_of_pool = self._info().pool is not Role.MIXED
        if is_of_pool and self._heartbeats is None:
            self._heartbeats = await self._bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)
            self._loop.look_before_packing(self._before_packing)
        elif not is_of_pool and self._heartbeats is not None:
            self._review()
            if not self._giving.num_on_their_way and not self._taking.num_under_way:
                await self._heartbeats.stop()
                self._heartbeats = None
                self._loop.look_before_packing(None)

    # What is heard

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        gone = self.peers.hear(heartbeat)
        if gone is not None:
            self._on_gone(gone)
        place = place_of(heartbeat.info)
        peer = self.peers.get(place)
        if peer is not None:
            self._pushing.forget_sent(place)
            self._meetings.meet(peer)
        self._review()

    def _on_gone(self, place: Place) -> None:
        logger.info("an executor is gone", extra={"peer": place.executor_id})
        self._pushing.forget_sent(place)
        self._spawn(self._meetings.part(place))

    async def _on_pull(self, pull: Pull) -> None:
        if self.acting is Role.RELAXED and self._link.is_connected(pull.taker):
            self._pulling.asked(pull)
            self._loop.wake()

    def _review(self) -> None:
        """What it acts as, and what leaves because of that."""
        info = self._info()
        acting = self.peers.acting_role(info.pool)
        if acting is not self.acting:
            logger.info(
                "acts as another", extra={"executor_id": info.executor_id, "role": info.role, "acts_as": acting}
            )
            self.acting = acting
            self._loop.wake()
        gives = acting is Role.RELAXED and not self._is_settling and self._pushing.has_takers()
        pushes = info.strategy.pushed_kinds if gives else ()
        if pushes != self._replica.handovers.pushes:
            self._replica.handovers.pushes = pushes
            self._replica.handovers.push_again()
            self._loop.wake()

    # Beside the steps

    def _may_have_something_to_do(self) -> bool:
        """Between steps, also where nobody has said anything."""
        info = self._info()
        pulls = self.acting is Role.STRICT and info.strategy.pulls and self._pulling.may_ask(info.pool)
        return pulls or self._replica.has_work or bool(self._taking.num_under_way)

    def _before_packing(self, entries: list[ScheduledRequest]) -> None:
        """After a step of these ``entries``, or where there is news."""
        for carried in self._replica.handovers.collect():
            self._give(carried)
        info = self._info()
        pulls = self.acting is Role.STRICT and info.strategy.pulls
        if pulls and self._takes_requests() and not self._taking.num_under_way:
            pull = self._pulling.next_pull(info, entries)
            if pull is not None:
                peer, message = pull
                self._spawn(self._bus.publish_or_drop(subjects.pull(peer.info.executor_id), message))

    def _give(self, carried: Carried) -> None:
        request_id = carried.request.request_id
        taker = self._pulling.who_asked(request_id)
        if taker is None or self.peers.get(taker) is None:
            taker = self._pushing.taker(carried)
        if taker is None or self._is_settling or self._giving.num_on_their_way >= MOST_GIVEN:
            self._replica.handovers.release(request_id)
            return
        self._giving.begin(carried, taker)
        self._spawn(self._giving.give(carried, taker, lambda: self._on_decided(carried, taker)))

    def _on_decided(self, carried: Carried, taker: Place) -> None:
        self._pushing.sent(carried, taker)
        if self._giving.num_on_their_way == MOST_GIVEN - 1:
            self._replica.handovers.push_again()  # those that found no room among them
        self._loop.wake()

    def _why_not(self, offer: Offer) -> str:
        if self._is_settling or not self._takes_requests():
            return TAKES_NONE
        return "it is of no pool" if self._info().pool is Role.MIXED else ""

    def _on_taken(self, kind: Kind) -> None:
        if kind is Kind.OFFLINE:
            self._pulling.came()
        self._loop.came(kind)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """It goes on by itself; ``settle`` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a handover failed", exc_info=task.exception())
