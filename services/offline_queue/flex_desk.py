"""Single offline requests of gateways, beside the batches: the service tier ``flex``."""

import asyncio
import logging
from dataclasses import dataclass, field

from services.offline_queue.hearing import Hearing
from shared.clock import Clock
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol.offline.flex import HOLD_PERIOD_S, FlexAnswer, FlexHeld, FlexSubmit
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.orders.offline.urgency import urgency

logger = logging.getLogger(__name__)

SILENCE_S = 3 * HOLD_PERIOD_S  # a gateway that has not named its requests for so long is gone
WINDOW_S = 600.0  # how long OpenAI's clients wait by default; towards its end a request is more urgent
NEWCOMER_SHARE = 2  # of the limit, for a client that has nothing here: nobody is kept out by who fills it
ENDED_CHECKS = 2  # that find a request ended, its gateway not knowing: the message was lost


@dataclass(slots=True)
class _Client:
    weight: float
    open: dict[str, float] = field(default_factory=dict)  # request without its attempt -> arrival, oldest first


@dataclass(slots=True)
class _Gateway:
    heard_s: float  # monotonic
    request_ids: dict[str, int] = field(default_factory=dict)  # -> how often it was found ended


class FlexDesk:
    """Synchronous. A request is in the pool as long as its gateway wants it, whatever becomes of executors."""

    def __init__(
        self, pool: OfflinePool, clock: Clock, hearing: Hearing, max_requests: int, serves_offline: bool = True
    ) -> None:
        """``max_requests``: beyond so many, new ones are refused."""
        self._pool = pool
        self._clock = clock
        self._hearing = hearing
        self._max_requests = max_requests
        self._serves_offline = serves_offline
        self._clients: dict[str, _Client] = {}  # by what they are scheduled under
        self._gateways: dict[str, _Gateway] = {}

    def __len__(self) -> int:
        return sum(len(client.open) for client in self._clients.values())

    def submit(self, message: FlexSubmit) -> FlexAnswer:
        """It waits from now on, in its client's turn; an attempt that it replaces is over."""
        request, batch_id = message.request, _batch_of(message.request.request_id)
        if not message.replaces and message.num_choices:
            refusal = self._refusal(batch_id, message.num_choices)
            if refusal is not None:
                return refusal
        self._pool.discard([message.replaces])
        gateway = self._gateway(request.gateway_id)
        gateway.request_ids.pop(message.replaces, None)
        gateway.request_ids[request.request_id] = 0
        client = self._clients.setdefault(batch_id, _Client(message.client_weight))
        client.weight = message.client_weight
        client.open.setdefault(_stem_of(request.request_id), request.arrival_s)
        self._pool.enter(request)
        if message.num_executors_lost:
            self._pool.retry(request.request_id, message.num_executors_lost)
        return FlexAnswer()

    def hold(self, message: FlexHeld) -> FlexAnswer:
        """Drop what the gateway has that it does not name; what of the rest is lost."""
        gateway = self._gateway(message.gateway_id)
        named = dict.fromkeys(message.request_ids)
        self.drop([request_id for request_id in gateway.request_ids if request_id not in named])
        return FlexAnswer(lost=[request_id for request_id in named if self._is_lost(gateway, request_id)])

    def drop(self, request_ids: list[str]) -> None:
        """Ended, or its client has gone; unknown ids are ignored."""
        self._pool.discard(request_ids)
        for request_id in request_ids:
            was_open = any(each.request_ids.pop(request_id, None) is not None for each in self._gateways.values())
            if was_open and (client := self._clients.get(_batch_of(request_id))) is not None:
                client.open.pop(_stem_of(request_id), None)
                if not client.open:
                    del self._clients[_batch_of(request_id)]

    def drop_silent(self) -> None:
        """The requests of gateways that are gone."""
        for gateway_id, gateway in list(self._gateways.items()):
            if self._hearing.silent_s(gateway.heard_s) > SILENCE_S:
                if gateway.request_ids:
                    lost = {"gateway_id": gateway_id, "requests": len(gateway.request_ids)}
                    logger.warning("gateway is gone", extra=lost)
                self.drop(list(gateway.request_ids))
                del self._gateways[gateway_id]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(HOLD_PERIOD_S)
            self.drop_silent()

    def share_of(self, batch_id: str) -> Share | None:
        """Whose the flex requests under this id are, and how urgent the oldest is; None where there are none."""
        client = self._clients.get(batch_id)
        if client is None:
            return None
        oldest_s = next(iter(client.open.values()))
        pressing = urgency(self._clock.unix_s(), oldest_s, oldest_s + WINDOW_S)
        return Share(batch_id.removeprefix("flex-"), client.weight, pressing, goes_first=True)

    def _is_lost(self, gateway: _Gateway, request_id: str) -> bool:
        if request_id not in gateway.request_ids:
            return True
        gateway.request_ids[request_id] += self._pool.has_ended(request_id)
        return gateway.request_ids[request_id] >= ENDED_CHECKS

    def _refusal(self, batch_id: str, num_choices: int) -> FlexAnswer | None:
        if not self._serves_offline:
            return FlexAnswer("the preset of this server runs no offline work")
        most = self._max_requests * NEWCOMER_SHARE
        if num_choices > max(1, most):
            return FlexAnswer(f"{num_choices} choices are more than can be under way, {most}", is_final=True)
        num_open = len(self)
        limit = self._max_requests if batch_id in self._clients else most
        return FlexAnswer(f"{num_open} flex requests are under way") if num_open + num_choices > limit else None

    def _gateway(self, gateway_id: str) -> _Gateway:
        now_s = self._clock.monotonic_s()
        gateway = self._gateways.setdefault(gateway_id, _Gateway(now_s))
        gateway.heard_s = now_s
        return gateway


def _batch_of(request_id: str) -> str:
    return request_id.rpartition(".")[0]


def _stem_of(request_id: str) -> str:
    """Without the attempt."""
    return request_id.rpartition("-")[0]
