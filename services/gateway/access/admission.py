"""Who is turned away while there is more to do than can be done: offline work first, then online requests."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from services.gateway.access.waiting_room import WaitingRoom
from services.gateway.http.errors import OVERLOADED, Refusal
from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.clock import Clock
from shared.openai.errors import RequestError
from shared.protocol import subjects

OFFLINE_SHARE = 0.5  # of any limit for online requests; beyond it offline work is turned away
NEWCOMER_SHARE = 2.0  # so that who floods the queue keeps no other client out of it
OFFLINE_RETRY_S = 30.0
RETRY_S = (2.0, 60.0)  # least and most for online requests
STANDING_S = 3.0  # a queue that has been there for so long is no burst
STANDING_SHARE = 1 / 3  # of an SLO on TTFT, that such a queue may take: p99 was seen at twice what is expected

RESOURCE_UNAVAILABLE = "resource_unavailable"  # OpenAI's code where there is no room for flex


def _no_room(what: str, code: str, hint: str, reason: str, why: str) -> Refusal:
    message = f"no {what} taken now: {why}; try again later{hint}"
    return Refusal(reason, message, OFFLINE_RETRY_S, 429, code)


no_room_offline = partial(_no_room, "offline work is", OVERLOADED, "")
no_room_for_flex = partial(_no_room, "flex requests are", RESOURCE_UNAVAILABLE, ", or with another service_tier")


def online_first(refusal: Callable[[str, str], Refusal] = no_room_offline) -> Refusal:
    """Of offline work, while there is too much else to do."""
    return refusal("online_first", "online requests need the time now")


@dataclass(frozen=True, slots=True)
class Admission:
    """Of one model. The limits are the settings' ``max_``: of this gateway for each model, the live requests of all of
    them together, the offline ones of the whole stack.

    Where an SLO bounds TTFT, a queue that does not go away is held to a third of it, so that who is taken has it kept.
    A burst may come late: nobody is told to come back later than its turn would have been."""

    bus: Bus
    clock: Clock
    limits: GatewaySettings
    room: WaitingRoom
    num_live: Callable[[], int]  # online requests that have not ended, of all models
    predicted_wait_s: Callable[[], float | None]  # for one more request, by latency models; None where there are none
    ttft_bound_s: float | None = None  # an SLO's

    def check_online(self, client_id: str, num_prompt_tokens: int = 0, num_choices: int = 1) -> None:
        """Whether so many more of this client may wait; before its body is read, of 0 tokens. Raises Refusal (503), and
        RequestError for more choices than ever may."""
        self._check_fits(client_id, num_choices)
        reason, share = self._tightest(num_choices * num_prompt_tokens, num_choices)
        if self._has_room(client_id, share):
            return
        now_s = self.clock.monotonic_s()
        self.room.refuse(now_s)
        wait_s = self._expected_wait_s() * self.room.crowd(
            now_s
        )  # so that those who were refused do not return at once
        least_s, most_s = RETRY_S
        message = f"there is too much to do (limit reached: {reason.replace('_', ' ')}); try again later"
        raise Refusal(reason, message, min(most_s, max(least_s, wait_s)))

    def takes_online(self, client_id: str) -> bool:
        """Whether one more of this client may wait, before its body is read; nobody is turned away."""
        return self._has_room(client_id, self._tightest(0)[1])

    @property
    def is_busy(self) -> bool:
        """Too much so for more offline work."""
        return self._tightest(0)[1] >= OFFLINE_SHARE

    async def check_offline(self, refusal: Callable[[str, str], Refusal] = no_room_offline) -> None:
        """Whether more offline work may come, ``no_room_for_flex`` where it is a flex request. Raises Refusal (429) and
        BusError."""
        if self.is_busy:
            raise online_first(refusal)
        await self.check_stored(refusal)

    async def check_stored(self, refusal: Callable[[str, str], Refusal] = no_room_offline) -> None:
        """Whether more offline requests may be stored. Raises Refusal (429) and BusError."""
        stored = await self.bus.size(subjects.REQUESTS_STREAM)
        if stored.messages >= self.limits.max_offline_requests:
            raise refusal("offline_requests", f"{stored.messages} offline requests have no result yet")
        if stored.bytes >= self.limits.max_offline_bytes:
            raise refusal("offline_bytes", f"offline requests without a result have {stored.bytes} bytes")

    def _check_fits(self, client_id: str, num_choices: int) -> None:
        """That so many may wait where nobody else does."""
        most = min(self.limits.max_live_requests, self.limits.max_waiting_requests)
        most = math.ceil(NEWCOMER_SHARE * most) if client_id else most
        if num_choices > most:
            message = f"{num_choices} choices are asked for, and {most} may wait at most; send them in several requests"
            raise RequestError(message)

    def _has_room(self, client_id: str, share: float) -> bool:
        return share < 1 or (share < NEWCOMER_SHARE and bool(client_id) and not self.room.has(client_id))

    def _tightest(self, num_prompt_tokens: int, num_requests: int = 1) -> tuple[str, float]:
        """The limit that is used up most, and its used share with so many more requests, the last not counted."""
        limits, room, others = self.limits, self.room, num_requests - 1
        shares = {
            "live_requests": (self.num_live() + others) / limits.max_live_requests,
            "waiting_requests": (len(room) + others) / limits.max_waiting_requests,
            "waiting_tokens": (room.num_tokens + num_prompt_tokens) / limits.max_waiting_tokens if len(room) else 0.0,
            "wait": self._expected_wait_s() / self._wait_bound_s(),
        }
        reason = max(shares, key=lambda name: shares[name])
        return reason, shares[reason]

    def _expected_wait_s(self) -> float:
        """As it is measured; where too little is, as it is predicted; 0 where nobody waits, or nothing is known."""
        if not len(self.room):
            return 0.0
        measured_s = self.room.expected_wait_s(self.clock.monotonic_s())
        return (self.predicted_wait_s() or 0.0) if measured_s is None else measured_s

    def _wait_bound_s(self) -> float:
        if self.ttft_bound_s is None:
            return self.limits.max_wait_s
        is_burst = self.room.standing_s(self.clock.monotonic_s()) < STANDING_S
        bound_s = max(self.ttft_bound_s, RETRY_S[0]) if is_burst else STANDING_SHARE * self.ttft_bound_s
        return min(self.limits.max_wait_s, bound_s)
