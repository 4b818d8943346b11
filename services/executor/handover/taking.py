"""Requests that come: room is made, their KV is read, and all are told whose they are now."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from services.executor.handover.giving import log_ids
from services.executor.handover.link import KVLink
from services.executor.request_spans import RequestSpans
from shared.bus import Bus
from shared.errors import LinkError
from shared.protocol import subjects
from shared.protocol.handover import Offer, OfferAnswer, OfferMessage, Place, Taken, Withdraw
from shared.replica.handover import Handovers, Reserved
from shared.scheduling.request import Kind

logger = logging.getLogger(__name__)

MOST_AT_A_TIME = 32  # reads under way, those included that were given up and may still be written
TAKE_S = 2.0  # below what a giver waits for its answer; what has not come by then is not taken
REMEMBERED = 4096  # handovers whose end is known, for who asks again


class Taking:
    """An offer is answered once, whatever is asked about it later: what was withdrawn is never taken, and what was
    taken stays so. Between the last look at that and the taking nothing is awaited."""

    def __init__(
        self,
        bus: Bus,
        place: Place,
        handovers: Handovers,
        link: KVLink,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        why_not: Callable[[Offer], str],
        on_taken: Callable[[Kind], None],
        on_broken: Callable[[Place], Coroutine[Any, Any, None]],
        spans: RequestSpans,
    ) -> None:
        """``why_not``: nothing of this kind is taken now, in words; ``on_taken``: the replica has one more;
        ``on_broken``: reads from there have failed."""
        self._bus = bus
        self._place = place
        self._handovers = handovers
        self._link = link
        self._spawn = spawn
        self._why_not = why_not
        self._on_taken = on_taken
        self._on_broken = on_broken
        self._spans = spans
        self._decided: OrderedDict[str, bool] = OrderedDict()  # by handover id: whether it was taken
        self.num_under_way = 0  # reads that have not ended
        self._num_asked = 0
        self.answered = asyncio.Event()  # set while no offer waits for its answer
        self.answered.set()

    async def answer(self, message: OfferMessage) -> OfferAnswer:
        """What came of it."""
        if message.taker != self._place:
            return OfferAnswer(message.handover_id, False, "another incarnation was meant")
        if isinstance(message, Withdraw):
            return OfferAnswer(message.handover_id, self._decide(message.handover_id, False), "withdrawn")
        self._num_asked += 1
        self.answered.clear()
        try:
            why = self._why_not(message) or await self._take(message)
        finally:
            self._num_asked -= 1
            if not self._num_asked:
                self.answered.set()
        if why:
            self._decide(message.handover_id, False)
            logger.info("request not taken", extra=_event(message) | {"why": why})
        return OfferAnswer(message.handover_id, not why, why)

    async def _take(self, offer: Offer) -> str:
        """Why it was not taken; empty where it was."""
        if not self._link.is_connected(offer.giver):
            return "not connected"
        if self.num_under_way >= MOST_AT_A_TIME:
            return "too many come at a time"
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TAKE_S
        reserved = self._reserve(offer)
        if isinstance(reserved, str):
            return reserved
        why = await self._read(offer, reserved, until_s - loop.time())
        if why:
            return why
        if loop.time() > until_s:  # this process was stopped, and its giver may have gone on
            why = "too late"
        elif self._decided.get(offer.handover_id) is False:
            why = "withdrawn"
        why = why or self._why_not(offer)
        if why:
            self._drop(offer)
            return why
        self._decide(offer.handover_id, True)
        sequence = self._handovers.take(offer.carried.request.request_id)
        self._spans.came(sequence, "decode")
        self._on_taken(sequence.kind)
        taken = Taken(sequence.request_id, sequence.gateway_id, offer.giver, self._place)
        await self._bus.publish_or_drop(subjects.taken(self._place.executor_id), taken)
        logger.debug("request taken", extra=_event(offer))
        return ""

    def _reserve(self, offer: Offer) -> Reserved | str:
        if offer.handover_id in self._decided:
            return "withdrawn"
        try:
            return self._handovers.reserve(offer.carried)
        except Exception as error:  # what one offer holds ends that one
            logger.warning("an offer makes no sense", extra={**_event(offer), "why": repr(error)})
            return f"it makes no sense: {error!r}"

    async def _read(self, offer: Offer, reserved: Reserved, timeout_s: float) -> str:
        """Why it has not come, with its room given back by now, or later."""
        self.num_under_way += 1
        reading = asyncio.ensure_future(self._link.read(offer.giver, reserved.pairs))
        done, _ = await asyncio.wait((reading,), timeout=max(0.0, timeout_s))
        if not done:
            self._spawn(self._let_go(offer, reading))
            return f"its KV has not come in {TAKE_S:g} s"
        self.num_under_way -= 1
        try:
            reading.result()
        except Exception as error:  # of whatever kind: it is over
            if not isinstance(error, LinkError):
                logger.error("a read failed", exc_info=error, extra=_event(offer))
            self._drop(offer)
            self._spawn(self._on_broken(offer.giver))
            return str(error) or repr(error)
        return ""

    async def _let_go(self, offer: Offer, reading: asyncio.Future[None]) -> None:
        """Its blocks may be written until the read has ended, whoever waits for it."""
        await asyncio.wait((reading,))
        self.num_under_way -= 1
        self._drop(offer)
        if reading.exception() is not None:
            await self._on_broken(offer.giver)

    def _drop(self, offer: Offer) -> None:
        request = offer.carried.request
        if self._handovers.drop(request.request_id):
            self._on_taken(request.kind)

    def _decide(self, handover_id: str, is_taken: bool) -> bool:
        """What was decided first."""
        decided = self._decided.setdefault(handover_id, is_taken)
        while len(self._decided) > REMEMBERED:
            self._decided.popitem(last=False)
        return decided


def _event(offer: Offer) -> dict[str, object]:
    return log_ids(offer.carried) | {"giver": offer.giver.executor_id}
