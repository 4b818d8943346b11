"""Requests that leave: each is offered to another executor, and it is found out what became of it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

from services.executor.handover.peers import Peers
from services.executor.request_spans import RequestSpans
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, NobodyListensError
from shared.latency.histogram import LatencyHistogram
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters
from shared.protocol.handover import Carried, Offer, OfferAnswer, OfferMessage, Place, Withdraw
from shared.replica.handover import Handovers

logger = logging.getLogger(__name__)

OFFER_S = 3.0  # so long an answer is waited for before the offer is taken back
WITHDRAW_S = 0.5  # and so long each answer to that


class Giving:
    """The request is held here until it is certain whether another executor has it: only an executor that is gone is
    not asked again."""

    def __init__(
        self,
        bus: Bus,
        place: Place,
        handovers: Handovers,
        peers: Peers,
        clock: Clock,
        totals: ExecutorCounters,
        spans: RequestSpans,
    ) -> None:
        self._bus = bus
        self._place = place
        self._handovers = handovers
        self._peers = peers
        self._clock = clock
        self._totals = totals
        self._spans = spans
        self._on_their_way: dict[str, tuple[Place, Carried]] = {}  # by request id
        self._gives_up = False
        self._handover_ms = LatencyHistogram()

    @property
    def num_on_their_way(self) -> int:
        return len(self._on_their_way)

    def on_their_way_to(self, place: Place) -> list[Carried]:
        """What was offered to this one and is not answered yet."""
        return [carried for taker, carried in self._on_their_way.values() if taker == place]

    def take_handover_ms(self) -> LatencyHistogram:
        """How long requests were held that have gone since the last call."""
        handover_ms, self._handover_ms = self._handover_ms, LatencyHistogram()
        return handover_ms

    def begin(self, carried: Carried, taker: Place) -> None:
        """It is on its way from here on: ``give`` follows."""
        self._on_their_way[carried.request.request_id] = taker, carried

    async def give(self, carried: Carried, taker: Place, on_decided: Callable[[], None]) -> None:
        """Returns once it is decided where the request is."""
        request_id, began_s = carried.request.request_id, self._clock.monotonic_s()
        offer = Offer(uuid.uuid4().hex, self._place, taker, carried)
        try:
            answer = await self._offer(offer)
        finally:
            del self._on_their_way[request_id]
        held_ms = (self._clock.monotonic_s() - began_s) * 1e3
        event = log_ids(carried) | {"taker": taker.executor_id, "held_ms": round(held_ms, 1)}
        if answer.is_taken:
            self._handovers.gave(request_id)
            self._spans.handed_over(request_id, taker.executor_id, held_ms / 1e3)
            self._handover_ms.add(held_ms)
            self._totals.handover_s += held_ms / 1e3
            logger.debug("request handed over", extra=event)
        else:
            self._handovers.release(request_id)
            logger.info("request not handed over", extra=event | {"why": answer.why})
        on_decided()

    def give_up(self) -> None:
        """This executor ends, also where nobody says what became of a request: a taker that stands still may have
        it."""
        self._gives_up = True

    async def _offer(self, offer: Offer) -> OfferAnswer:
        try:
            return await self._ask(offer, OFFER_S)
        except NobodyListensError:
            return OfferAnswer(offer.handover_id, False, "it is not on the bus")
        except Exception as error:  # of whatever kind: the taker may have it
            event = log_ids(offer.carried) | {"why": str(error)}
            logger.warning("an offer is taken back", exc_info=not isinstance(error, BusError), extra=event)
        withdraw = Withdraw(offer.handover_id, offer.giver, offer.taker)
        while self._peers.get(offer.taker) is not None and not self._gives_up:
            try:
                return await self._ask(withdraw, WITHDRAW_S)
            except Exception as error:
                logger.debug("no word from a taker", extra={"taker": offer.taker.executor_id, "why": str(error)})
            await asyncio.sleep(WITHDRAW_S / 2)
        return OfferAnswer(offer.handover_id, False, "this executor ends" if self._gives_up else "it is gone")

    async def _ask(self, message: OfferMessage, timeout_s: float) -> OfferAnswer:
        return await self._bus.request(subjects.offer(message.taker.executor_id), message, OfferAnswer, timeout_s)


def log_ids(carried: Carried) -> dict[str, object]:
    """What a log line about it names."""
    return {"request_id": carried.request.request_id, "http_request_id": carried.request.http_request_id}
