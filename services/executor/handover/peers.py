"""The other executors of the same model, by their heartbeats: who is there, and what one acts as beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.clock import Clock
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.handover import Place
from shared.scheduling.placement.role import Role, acting_role

SILENCE_S = 3.0  # after so long without a heartbeat an executor counts as gone


def place_of(info: ExecutorInfo) -> Place:
    """The incarnation that this is the registration of."""
    return Place(info.executor_id, info.epoch)


@dataclass(slots=True)
class Peer:
    """The newest of an executor."""

    heartbeat: Heartbeat
    seen_s: float

    @property
    def info(self) -> ExecutorInfo:
        return self.heartbeat.info

    @property
    def place(self) -> Place:
        return place_of(self.info)


class Peers:
    """An executor hears its own heartbeats, too: while it does not, the bus is away, and nobody else's silence means
    anything."""

    def __init__(self, own: Place, model: str, clock: Clock) -> None:
        self._own = own
        self._model = model
        self._clock = clock
        self._peers: dict[str, Peer] = {}  # by executor id
        self._own_s = clock.monotonic_s()  # of the last own heartbeat

    def hear(self, heartbeat: Heartbeat) -> Place | None:
        """The incarnation that this one has come in the place of, if any."""
        now_s, info = self._clock.monotonic_s(), heartbeat.info
        place = place_of(info)
        if place == self._own:
            self._own_s = now_s
        if info.executor_id == self._own.executor_id or info.spec.model != self._model:
            return None
        before = self._peers.get(info.executor_id)
        self._peers[info.executor_id] = Peer(heartbeat, now_s)
        return before.place if before is not None and before.place != place else None

    def fall_silent(self) -> list[Place]:
        """Who is gone since the last call: nothing has been heard for too long."""
        now_s = self._clock.monotonic_s()
        if now_s - self._own_s > SILENCE_S / 2:
            for peer in self._peers.values():
                peer.seen_s = now_s  # each has its time again once the bus is back
            return []
        gone = [key for key, peer in self._peers.items() if now_s - peer.seen_s > SILENCE_S]
        return [self._peers.pop(key).place for key in gone]

    def there(self) -> Iterator[Peer]:
        """In the order in which they were first heard."""
        yield from self._peers.values()

    def get(self, place: Place) -> Peer | None:
        """None where that incarnation is gone."""
        peer = self._peers.get(place.executor_id)
        return peer if peer is not None and peer.place == place else None

    def acting_role(self, role: Role) -> Role:
        """What one of this role acts as beside those that take requests."""
        return acting_role(role, self._pools())

    def role_of(self, peer: Peer, own: Role) -> Role:
        """What a peer acts as, where this executor is ``own``."""
        return acting_role(peer.info.pool, [*self._pools(), own])

    def _pools(self) -> list[Role]:
        """Of those that take requests."""
        return [peer.info.pool for peer in self._peers.values() if not peer.heartbeat.draining]
