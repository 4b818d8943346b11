"""Requests that move between executors in virtual time: what goes between giver and taker, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from shared.protocol.handover import Carried, Place, Taken
from shared.scheduling.placement.pulling import AWAITED_S, Preference, nearest
from shared.scheduling.placement.pushing import Taker, best_taker
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.simulation.events import Events
from shared.simulation.executor import VirtualExecutor
from shared.simulation.link import Link, LinkTimeline
from shared.simulation.setup import EPOCH

Send = Callable[[Callable[[], None]], None]  # has it happen when a message that is sent now arrives


class VirtualHandovers:
    """A request that an executor holds for another is offered to it; that one makes room, reads the KV over the link,
    takes the request and says so to all, then to the giver, which forgets it. Nobody fails and no message is lost here:
    an offer that is refused is the only one that comes to nothing."""

    def __init__(
        self,
        executors: Mapping[str, VirtualExecutor],
        link: Link,
        events: Events,
        send: Send,
        tell: Callable[[Taken], None],
    ) -> None:
        """``tell``: all who go by where a request is."""
        self._executors = executors
        self._strict = [each for each in executors.values() if each.role is Role.STRICT]
        self._relaxed = [each for each in executors.values() if each.role is Role.RELAXED]
        self._link = LinkTimeline(link)
        self._events = events
        self._send = send
        self._tell = tell
        self._takers = {each.info.executor_id: _taker_of(each) for each in self._strict}  # as of their last word
        self._pulled: dict[str, str] = {}  # by request that was asked for: who has asked
        self._awaited: dict[str, dict[str, None]] = {}  # by who has asked: requests that are not decided
        self._asked_s: dict[str, float] = {}  # and since when

    @property
    def is_busy(self) -> bool:
        """Somebody may have something to give."""
        return any(each.replica.has_work for each in self._relaxed)

    def on_heartbeats(self) -> None:
        """Strict executors tell what they have; those that run nothing ask, others do that after each step."""
        for strict in self._strict:
            self._takers[strict.info.executor_id] = _taker_of(strict)
            strict.ask_if_idle()
        self._forget_ended()
        for relaxed in self._relaxed:
            relaxed.replica.handovers.push_again()

    def pull(self, taker_id: str, wanted: Preference) -> None:
        """A strict executor asks the relaxed one with the most offline requests that run, as a live one does, once all
        that it asked for before is there or is not going to come."""
        now_s = self._events.now_s
        is_patient = self._awaited.get(taker_id) and now_s < self._asked_s[taker_id] + AWAITED_S
        if is_patient or not self._relaxed:
            return
        giver = max(self._relaxed, key=lambda each: len(each.replica.table.running(Kind.OFFLINE)))
        self._awaited[taker_id], self._asked_s[taker_id] = {"": None}, now_s
        self._send(partial(self._asked, giver, taker_id, wanted))

    def give(self, giver_id: str, carried: Carried) -> None:
        """The giver holds this from now on, for who has asked for it, or for the strict executor that suits it best."""
        giver, request_id = self._executors[giver_id], carried.request.request_id
        taker_id = self._pulled.pop(request_id, None) or self._best_taker(carried)
        if taker_id is None:
            giver.release(request_id)
        else:
            self._send(partial(self._offer, giver, self._executors[taker_id], carried))

    def _asked(self, giver: VirtualExecutor, taker_id: str, wanted: Preference) -> None:
        """It reaches the giver."""
        candidates = giver.replica.handovers.decoding(Kind.OFFLINE)
        chosen = nearest(wanted.num_tokens, candidates, wanted.num_requests, wanted.most_tokens)
        self._pulled |= dict.fromkeys(chosen, taker_id)
        self._awaited[taker_id] = dict.fromkeys(chosen)
        giver.ask(chosen)

    def _forget_ended(self) -> None:
        """Those that were asked for and have ended before they could go."""
        running = [each.replica.table.running(Kind.OFFLINE) for each in self._relaxed]
        self._pulled = {key: taker for key, taker in self._pulled.items() if any(key in each for each in running)}

    def _best_taker(self, carried: Carried) -> str | None:
        """Who counts with it from here on."""
        num_tokens = carried.num_computed_tokens + 1
        taker = best_taker(list(self._takers.values()), num_tokens)
        if taker is None:
            return None
        taker.work.add_decode(num_tokens)
        self._takers[taker.executor_id] = replace(taker, num_free_tokens=taker.num_free_tokens - num_tokens)
        return taker.executor_id

    def _offer(self, giver: VirtualExecutor, taker: VirtualExecutor, carried: Carried) -> None:
        """It reaches the taker."""
        request_id = carried.request.request_id
        reserved = taker.replica.handovers.reserve(carried)
        if isinstance(reserved, str):
            self._decided(taker, request_id)
            self._send(partial(giver.release, request_id))
            return
        num_tokens = len(reserved.pairs) * taker.setup.limits.block_size
        ids = giver.info.executor_id, taker.info.executor_id
        done_s = self._link.read(*ids, num_tokens, self._events.now_s)
        self._events.at(done_s, partial(self._read, giver, taker, carried))

    def _read(self, giver: VirtualExecutor, taker: VirtualExecutor, carried: Carried) -> None:
        """The KV is there."""
        request = carried.request
        places = (Place(each.info.executor_id, EPOCH) for each in (giver, taker))
        self._decided(taker, request.request_id)
        self._tell(Taken(request.request_id, request.gateway_id, *places))
        taker.take(request.request_id)
        self._send(partial(giver.gave, request.request_id))

    def _decided(self, taker: VirtualExecutor, request_id: str) -> None:
        self._awaited.get(taker.info.executor_id, {}).pop(request_id, None)


def _taker_of(strict: VirtualExecutor) -> Taker:
    """As it is now."""
    pool, (policy, model) = strict.replica.pool, strict.tuning()
    num_tokens = (pool.num_free + pool.num_offline_only) * strict.setup.limits.block_size
    return Taker(strict.info.executor_id, strict.replica.online_work(), model, policy.decodes_limit_ms, num_tokens)
