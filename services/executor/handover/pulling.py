"""Offline requests that a strict executor asks for, and the answer of the relaxed one that has them (OOCO section
3.4.3, Alg. 1)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.executor.handover.link import KVLink
from services.executor.handover.peers import Peer, Peers
from shared.clock import Clock
from shared.latency.model import LatencyModel
from shared.protocol.executors import ExecutorInfo
from shared.protocol.handover import Place, Pull
from shared.replica.replica import Replica
from shared.replica.wanted import wanted_by
from shared.scheduling.placement.pulling import AWAITED_S, nearest
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest

logger = logging.getLogger(__name__)


class Pulling:
    """One pull at a time: those that it brings change what the next is to ask for."""

    def __init__(
        self,
        place: Place,
        replica: Replica,
        peers: Peers,
        link: KVLink,
        tuning: Callable[[], tuple[Policy, LatencyModel]],
        clock: Clock,
    ) -> None:
        self._place = place
        self._replica = replica
        self._peers = peers
        self._link = link
        self._tuning = tuning
        self._clock = clock
        self._num_awaited = 0
        self._until_s = 0.0
        self._asked_by: dict[str, Place] = {}  # by request id, of those that are to go

    # The strict side

    def next_pull(self, info: ExecutorInfo, entries: list[ScheduledRequest]) -> tuple[Peer, Pull] | None:
        """What to ask whom for, after a step of these ``entries``; or, with none, while nothing runs."""
        if self._num_awaited and self._clock.monotonic_s() < self._until_s:
            return None
        peer = self._busiest(info.pool)
        if peer is None:
            return None
        wanted = wanted_by(self._replica, entries, *self._tuning(), info.strategy.pull_margin)
        if wanted is None:
            return None
        self._num_awaited, self._until_s = wanted.num_requests, self._clock.monotonic_s() + AWAITED_S
        return peer, Pull(self._place, wanted.num_tokens, wanted.num_requests, wanted.most_tokens)

    def may_ask(self, own: Role) -> bool:
        """Somebody has what may be asked for."""
        return self._busiest(own) is not None

    def came(self) -> None:
        """One that was asked for, in all likelihood."""
        self._num_awaited = max(0, self._num_awaited - 1)

    def _busiest(self, own: Role) -> Peer | None:
        """The relaxed executor with most offline requests that run: line 13 leaves open which one is asked."""
        having = [
            peer
            for peer in self._peers.there()
            if peer.heartbeat.offline_running
            and self._link.is_connected(peer.place)
            and self._peers.role_of(peer, own) is Role.RELAXED
        ]
        return max(having, key=lambda peer: peer.heartbeat.offline_running, default=None)

    # The relaxed side

    def asked(self, pull: Pull) -> None:
        """Its nearest requests are to go there, once they are in no step; not those that go to another, or that cannot
        run there."""
        peer = self._peers.get(pull.taker)
        candidates = self._replica.handovers.decoding(Kind.OFFLINE, None if peer is None else peer.info.spec)
        chosen = nearest(pull.num_tokens, candidates, pull.num_requests, pull.most_tokens)
        self._asked_by |= dict.fromkeys(chosen, pull.taker)
        self._replica.handovers.ask(chosen)
        logger.debug("asked for offline requests", extra={"taker": pull.taker.executor_id, "requests": len(chosen)})

    def who_asked(self, request_id: str) -> Place | None:
        """And forget it: it goes now, or stays."""
        return self._asked_by.pop(request_id, None)

    def forget_ended(self) -> None:
        """Those that were asked for and have ended before they could go."""
        running = self._replica.table.running(Kind.OFFLINE)
        self._asked_by = {key: place for key, place in self._asked_by.items() if key in running}
