"""Executors connect when they meet, so that the first request that moves does not wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from services.executor.handover.link import KVLink
from services.executor.handover.peers import Peer
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, LinkError
from shared.protocol import subjects
from shared.protocol.handover import AskKVAddress, KVAddress, Place
from shared.scheduling.placement.role import Role

logger = logging.getLogger(__name__)

TRY_AGAIN_S = 5.0


class Meetings:
    """One attempt at a time with each; one that fails is made again."""

    def __init__(
        self,
        bus: Bus,
        link: KVLink,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_connected: Callable[[], None],
    ) -> None:
        """``spawn``: has something go on by itself."""
        self._bus = bus
        self._link = link
        self._clock = clock
        self._spawn = spawn
        self._on_connected = on_connected
        self._under_way: dict[Place, None] = {}
        self._failed_s: dict[Place, float] = {}  # when the last attempt failed

    def meet(self, peer: Peer) -> None:
        """It is there. Nothing where it takes no part in handovers, or is connected, or was tried lately."""
        info = peer.info
        if info.pool is not Role.MIXED and info.kv_link == self._link.kind:
            self._begin(peer.place, None)

    async def answer(self, ask: AskKVAddress) -> KVAddress:
        """Who asks is connected to in turn."""
        if ask.asker.link == self._link.kind:
            self._begin(ask.asker.place, ask.asker)
        return self._link.address

    async def part(self, place: Place) -> None:
        """Its incarnation is gone, or the connection is of no use any more."""
        self._failed_s.pop(place, None)
        await self._link.disconnect(place)

    def _begin(self, place: Place, address: KVAddress | None) -> None:
        if self._link.is_connected(place) or place in self._under_way:
            return
        failed_s = self._failed_s.get(place)
        if failed_s is None or self._clock.monotonic_s() - failed_s >= TRY_AGAIN_S:
            self._under_way[place] = None
            self._spawn(self._connect(place, address))

    async def _connect(self, place: Place, address: KVAddress | None) -> None:
        event = {"peer": place.executor_id, "link": self._link.kind}
        try:
            if address is None:
                subject = subjects.kv_address(place.executor_id)
                address = await self._bus.request(subject, AskKVAddress(self._link.address), KVAddress)
            if address.place != place:
                raise LinkError("another incarnation has answered")
            await self._link.connect(address)
        except (BusError, LinkError) as error:
            level = logging.DEBUG if place in self._failed_s else logging.WARNING
            logger.log(level, "not connected to an executor", extra=event | {"why": str(error)})
            self._failed_s[place] = self._clock.monotonic_s()
            return
        finally:
            del self._under_way[place]
        self._failed_s.pop(place, None)
        logger.info("connected to an executor", extra=event)
        self._on_connected()
