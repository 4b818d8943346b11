"""Plans go out, beside the messages that come in."""

import asyncio
import logging
from dataclasses import dataclass

from services.offline_queue.attached import AttachedExecutors
from services.offline_queue.batches.manager import BatchManager
from services.offline_queue.executor_desk import ExecutorDesk
from services.offline_queue.flex_desk import FlexDesk
from services.offline_queue.plans_due import PlansDue
from shared.bus import Bus
from shared.openai.errors import RequestError
from shared.protocol import subjects
from shared.protocol.requests import AbortRequests
from shared.protocol.tokens import StepTokens
from shared.replica.outputs import Ended, final_output

logger = logging.getLogger(__name__)

SHORTEST_S = 0.005  # between two looks at who may enter by now; of a higher rate several may


@dataclass(frozen=True, slots=True)
class Planning:
    """Where several words of an executor wait, it plans after the last. ``name``: the service's, for those who are told
    of an end."""

    bus: Bus
    name: str
    attached: AttachedExecutors
    due: PlansDue
    desk: ExecutorDesk
    batches: BatchManager
    flex: FlexDesk

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            has_work, spoken, aborts = await self.due.next()
            for executor_id, request_ids in aborts.items():
                await self.bus.publish_or_drop(subjects.inbox(executor_id), AbortRequests(list(request_ids)))
            for executor_id in list(self.attached) if has_work else spoken:
                await self._plan(executor_id)
            self.desk.look()

    async def release(self, period_s: float) -> None:
        """At a fixed rate an idle executor gets work when its time has come, not when something else happens. Until
        cancelled."""
        while True:
            await asyncio.sleep(max(period_s, SHORTEST_S))
            self.due.on_work()

    async def _plan(self, executor_id: str) -> None:
        attached = self.attached.get(executor_id)
        if attached is None or attached.is_silent:
            return
        try:
            plans = attached.scheduler.plan()
        except Exception:  # of what an executor has told of itself: no other is to suffer from it
            logger.exception("no plan can be made, the executor is begun with anew", extra={"executor_id": executor_id})
            await self.desk.begin_anew(attached)
            return
        for plan in plans:
            await self.bus.publish_or_drop(subjects.plan(executor_id), plan)
        if refused := attached.scheduler.take_refused():
            await self._refuse(refused)
            self.due.on_work()
        await asyncio.sleep(0)  # so that those behind it are heard before they are planned for

    async def _refuse(self, refused: list[Ended]) -> None:
        """What no executor can hold ends with the error that an executor would have ended it with."""
        for ended in refused:
            request_id, gateway_id = ended.sequence.request_id, ended.sequence.gateway_id
            if not gateway_id:
                self.batches.give_up(request_id, self._error_of(ended))
                continue
            self.flex.drop([request_id])
            tokens = StepTokens(self.name, "", 0, [final_output(ended)])
            await self.bus.publish_or_drop(subjects.tokens(gateway_id), tokens)

    def _error_of(self, refused: Ended) -> RequestError:
        """As the gateway answers one of its own."""
        adapter = refused.sequence.sampling.adapter
        specs = [each.scheduler.info.spec for each in self.attached.values()]
        if adapter and all(spec.why_without(adapter) for spec in specs):
            return RequestError(f"no executor has the adapter {adapter!r}", "model", "service_unavailable", 503)
        return RequestError(refused.error, code="context_length_exceeded")
