"""To whom a request goes once its prompt is computed."""

from __future__ import annotations

from copy import copy

from services.executor.handover.giving import Giving
from services.executor.handover.link import KVLink
from services.executor.handover.peers import Peer, Peers
from shared.protocol.handover import Carried, Place
from shared.replica.handover import can_run
from shared.scheduling.placement.pushing import Taker, best_taker
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.watch.tuning import Tuning


class Pushing:
    """Strict executors as the last heartbeat of each told, with what has gone there since."""

    def __init__(self, peers: Peers, link: KVLink, giving: Giving, tuning: Tuning) -> None:
        self._peers = peers
        self._link = link
        self._giving = giving
        self._tuning = tuning
        self._sent: dict[Place, list[Carried]] = {}  # and decided, since its last heartbeat

    def has_takers(self) -> bool:
        """Somebody may take requests."""
        return any(self._can_take(peer) for peer in self._peers.there())

    def taker(self, carried: Carried) -> Place | None:
        """None where nobody has room for it, and can run it."""
        num_tokens, adapter = carried.num_computed_tokens + 1, carried.request.sampling.adapter
        there = (peer for peer in self._peers.there() if self._can_take(peer))
        takers = {peer.info.executor_id: peer for peer in there if can_run(peer.info.spec, num_tokens, adapter)}
        seen = [self._taker(peer, carried.request.kind) for peer in takers.values()]
        chosen = best_taker(seen, num_tokens)
        return None if chosen is None else takers[chosen.executor_id].place

    def forget_sent(self, place: Place) -> None:
        """A heartbeat tells what has come there by now, or nothing is there any more."""
        self._sent.pop(place, None)

    def sent(self, carried: Carried, place: Place) -> None:
        """It was offered there, and either is there now or found no room."""
        if self._peers.get(place) is not None:
            self._sent.setdefault(place, []).append(carried)

    def _can_take(self, peer: Peer) -> bool:
        return peer.info.pool is Role.STRICT and not peer.heartbeat.draining and self._link.is_connected(peer.place)

    def _taker(self, peer: Peer, kind: Kind) -> Taker:
        info, heartbeat, tuning = peer.info, peer.heartbeat, self._tuning
        work, gone_tokens = copy(heartbeat.online_work), 0
        for carried in (*self._giving.on_their_way_to(peer.place), *self._sent.get(peer.place, ())):
            gone_tokens += carried.num_computed_tokens + info.spec.block_size
            if carried.request.kind is Kind.ONLINE:
                work.add_decode(carried.num_computed_tokens + 1)
        free_blocks = heartbeat.num_free_blocks
        free_blocks += heartbeat.blocks.offline if kind is Kind.ONLINE else -heartbeat.num_reserved_blocks
        free_tokens = free_blocks * info.spec.block_size - gone_tokens
        limit_ms = tuning.policy(info).decodes_limit_ms
        return Taker(info.executor_id, work, tuning.model(info.profile_key), limit_ms, free_tokens)
