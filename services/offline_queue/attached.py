"""The executors that the offline-queue has a scheduler for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.bus import Subscription
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import Scheduler
from shared.protocol.executors import ExecutorInfo
from shared.protocol.handover import Place, Taken
from shared.scheduling.placement.role import Role, acting_role


@dataclass(slots=True)
class Attached:
    """An executor's scheduler and its subscriptions."""

    scheduler: Scheduler
    seen_s: float
    is_silent: bool = False
    is_to_tell: bool = True  # what it holds: it has said nothing yet, or something was lost
    has_spoken: bool = True  # since its last heartbeat, of its steps or of what it holds without one
    was_asked: bool = False  # since then, for what is not known of it
    lost: list[str] = field(default_factory=list)  # what it held when it fell silent, until it says what it holds
    subscriptions: list[Subscription] = field(default_factory=list)

    def update(self, info: ExecutorInfo) -> bool:
        """The same incarnation's registration, by now; whether it was another."""
        before = self.scheduler.info
        if before != info:
            self.scheduler.registered(info)
        return before != info


class AttachedExecutors(dict[str, Attached]):
    """By id."""

    def at_work(self, pool: OfflinePool) -> Iterable[ExecutorInfo]:
        """Those that hold requests, as far as is known, and are not silent."""
        busy = ((executor_id, each) for executor_id, each in self.items() if pool.holds_any(executor_id))
        return [each.scheduler.info for _, each in busy if not each.is_silent]

    def incarnation(self, place: Place) -> Attached | None:
        """None where it is not here any more, or not yet."""
        attached = self.get(place.executor_id)
        return None if attached is None or attached.scheduler.info.epoch != place.epoch else attached

    def acting_role(self, executor_id: str) -> Role:
        """As what it acts beside the others that take requests."""
        there = (each for each in self.values() if each.scheduler.takes_requests and not each.is_silent)
        return acting_role(self[executor_id].scheduler.info.pool, (each.scheduler.info.pool for each in there))

    def move(self, taken: Taken, pool: OfflinePool) -> bool:
        """A request has gone from one executor to another; False where the taker is not to have it. What a gateway
        waits for and the pool does not know is left to the gateway."""
        giver, taker = self.incarnation(taken.giver), self.incarnation(taken.taker)
        if giver is not None:
            giver.scheduler.gave(taken.request_id)
        if taken.gateway_id and taken.request_id not in pool:
            return True
        if taker is None or taker.is_silent:  # nobody would notice its end
            return False
        giver_id = "" if giver is None else taken.giver.executor_id
        if not pool.move(taken.request_id, giver_id, taken.taker.executor_id):
            return False
        taker.scheduler.took(taken.request_id)
        return True
