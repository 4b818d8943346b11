"""The requests that one executor holds, in scheduling order."""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, takewhile
from operator import attrgetter, methodcaller

from shared.scheduling.orders.online.order import ClientCounters, OnlineOrder
from shared.scheduling.request import OFFLINE, ONLINE, Kind, Request

_was_admitted = attrgetter("was_admitted")
_is_held = attrgetter("is_held")
_copy = methodcaller("__copy__")  # what copy.copy ends at, in a third of its time


class RequestTable:
    """Waiting and running requests of both kinds, each in the order in which they are scheduled.

    Waiting requests stand in arrival order, running ones in the order of their first start (for offline requests the
    order in which they were chosen, HyGen section A.2). One that was preempted waits before those that have never run,
    and keeps its place among all that have. ``online_order`` says in which order the waiting online ones enter.
    """

    def __init__(self, online_order: OnlineOrder | None = None) -> None:
        self.online_order = online_order or OnlineOrder()
        self._waiting: tuple[OrderedDict[str, Request], OrderedDict[str, Request]] = (OrderedDict(), OrderedDict())
        self._running: tuple[dict[str, Request], dict[str, Request]] = ({}, {})
        self._places: dict[str, int] = {}  # of those that have run, by first start
        self._told_places: dict[str, int] = {}  # as they were when the owner was last heard
        self._starts = count()

    def __contains__(self, request_id: str) -> bool:
        return self.get(request_id) is not None

    def __iter__(self) -> Iterator[Request]:
        for kind in Kind:
            yield from self._running[kind].values()
            yield from self._waiting[kind].values()

    def __len__(self) -> int:
        return sum(len(held) for held in (*self._waiting, *self._running))

    def get(self, request_id: str) -> Request | None:
        """None for a request that is not here."""
        online, offline = self._running
        request = online.get(request_id)
        if request is None:
            request = offline.get(request_id)
        if request is None:
            online, offline = self._waiting
            request = online.get(request_id)
        return offline.get(request_id) if request is None else request

    @property
    def holds_online(self) -> bool:
        """Any online request, whether it runs or waits, but for those that are about to move to another executor."""
        return bool(self._waiting[ONLINE]) or not all(map(_is_held, self._running[ONLINE].values()))

    def running(self, kind: Kind) -> dict[str, Request]:
        """Requests with KV, by id, in scheduling order; not to be changed."""
        return self._running[kind]

    def waiting(self, kind: Kind) -> dict[str, Request]:
        """Requests without KV, by id, in order of arrival; not to be changed."""
        return self._waiting[kind]

    def online_queue(self) -> Iterator[Request]:
        """Online requests without KV, in the online order; the table must not change while this is read."""
        return self.online_order.in_order(self._waiting[ONLINE])

    def add(self, request: Request) -> None:
        """At the end of its queue. Raises ValueError for an id that is here already."""
        if request.request_id in self:
            raise ValueError(f"request {request.request_id} is here already")
        self._append(request)
        if request.kind is ONLINE:
            self.online_order.add(request)

    def remove(self, request_id: str) -> Request | None:
        """Take it out; None where it is not here."""
        self._places.pop(request_id, None)
        for held in (*self._running, *self._waiting):
            request = held.pop(request_id, None)
            if request is not None:
                if request.kind is ONLINE:
                    self.online_order.remove(request)
                return request
        return None

    def start(self, request: Request) -> None:
        """From waiting to its place in running, once it has blocks: the end for one that has never run."""
        del self._waiting[request.kind][request.request_id]
        place = self._places.setdefault(request.request_id, next(self._starts))
        self._insert(self._running[request.kind], request, place)
        if request.kind is ONLINE:
            self.online_order.start(request)
        request.was_admitted = True

    def preempt(self, request: Request) -> None:
        """From running to its place in waiting; its KV is gone, its tokens stay."""
        del self._running[request.kind][request.request_id]
        request.num_computed_tokens = 0
        request.num_blocks = 0
        request.num_kept_blocks = None
        request.num_missing_slots = 0
        self._insert_waiting(request, self._places[request.request_id])
        if request.kind is ONLINE:
            self.online_order.preempt(request)

    def replace(self, requests: Iterable[Request], counters: ClientCounters | None = None) -> None:
        """Hold exactly these, in this order, with the online order's memory as its owner tells it."""
        for held in (*self._waiting, *self._running):
            held.clear()
        for request in requests:
            (self._running if request.num_blocks > 0 else self._waiting)[request.kind][request.request_id] = request
        self._restore_places()
        self._restore_order(counters)

    def renew(self, requests: Iterable[Request], gone: Iterable[str], counters: ClientCounters | None = None) -> None:
        """As ``replace``, but online requests that wait here and have never run stay where they are, unless they are
        ``gone``. Those of ``requests`` that wait and have never run come last."""
        waiting = self._waiting[ONLINE]
        for request_id in [*takewhile(lambda each: waiting[each].was_admitted, waiting), *gone]:
            waiting.pop(request_id, None)
        for held in (*self._running, self._waiting[OFFLINE]):
            held.clear()
        preempted, (running_online, running_offline) = [], self._running
        for request in requests:
            key, kind = request.request_id, request.kind
            if request.num_blocks > 0:
                (running_online if kind is ONLINE else running_offline)[key] = request
                continue
            waiting.pop(key, None)
            if kind is ONLINE and request.was_admitted:
                preempted.append(request)
            self._waiting[kind][key] = request
        for request_id in [each for each in chain(*self._running) if each in waiting] if waiting else ():
            del waiting[request_id]
        for request in reversed(preempted):
            waiting.move_to_end(request.request_id, last=False)
        self._restore_places()
        self._restore_order(counters)

    @property
    def num_fresh(self) -> int:
        """Online requests that wait and have never run."""
        waiting = self._waiting[ONLINE]
        return len(waiting) - sum(1 for _ in takewhile(_was_admitted, waiting.values()))

    def copies(self, fresh: Iterable[str] | None = None) -> list[Request]:
        """Of all that is held, in order. ``fresh``: of online requests that wait and have never run, those that are
        among these."""
        if fresh is None:
            return [_copy(request) for request in self]
        waiting = self._waiting[ONLINE]
        preempted = takewhile(_was_admitted, waiting.values())
        others = (waiting[key] for key in fresh if key in waiting and not waiting[key].was_admitted)
        offline = (self._running[OFFLINE].values(), self._waiting[OFFLINE].values())
        return [_copy(request) for request in chain(self._running[ONLINE].values(), preempted, others, *offline)]

    def count(self, request_ids: Iterable[str], kind: Kind) -> int:
        """How many of these are here and of that kind."""
        return sum(request_id in self._waiting[kind] or request_id in self._running[kind] for request_id in request_ids)

    def num_blocks(self, kind: Kind) -> int:
        """Blocks in the tables of running requests of one kind that are not paused; a shared block counts for each that
        shares it."""
        return sum(request.num_freed_blocks for request in self._running[kind].values())

    def num_blocks_in_flight(self, kind: Kind) -> int:
        """Those of them in the tables of requests that are in a step that runs now."""
        return sum(request.num_blocks for request in self._running[kind].values() if request.is_in_flight)

    def _append(self, request: Request) -> None:
        if request.num_blocks > 0:
            self._places[request.request_id] = next(self._starts)
            self._running[request.kind][request.request_id] = request
        else:
            self._waiting[request.kind][request.request_id] = request

    def _insert(self, held: dict[str, Request], request: Request, place: int) -> None:
        """Behind all with a smaller place; those that have none are last."""
        behind = list(takewhile(lambda other: self._places.get(other, math.inf) > place, reversed(held)))
        moved = {request_id: held.pop(request_id) for request_id in reversed(behind)}
        held[request.request_id] = request
        held.update(moved)

    def _insert_waiting(self, request: Request, place: int) -> None:
        """As ``_insert``, from the front: most of those that wait have never run."""
        held = self._waiting[request.kind]
        ahead = list(takewhile(lambda other: self._places.get(other, math.inf) < place, held))
        held[request.request_id] = request
        for request_id in (request.request_id, *reversed(ahead)):
            held.move_to_end(request_id, last=False)

    def _restore_places(self) -> None:
        """Of those that run, as they stand; of those that were preempted here, among them as before. One that was
        thought to have ended and runs on has the place that it had."""
        known, self._places = self._told_places | self._places, {}
        for running, waiting in zip(self._running, self._waiting, strict=True):
            ran = takewhile(_was_admitted, waiting.values())
            preempted = deque(takewhile(known.__contains__, (request.request_id for request in ran)))
            in_order = _merged(running, preempted, known) if preempted else running
            self._places.update(zip(in_order, self._starts, strict=False))
        self._told_places = self._places.copy()

    def _restore_order(self, counters: ClientCounters | None) -> None:
        self.online_order.restore(counters, chain(*(held[ONLINE].values() for held in (self._running, self._waiting))))

    def check_integrity(self) -> None:
        """Raises AssertionError where the queues disagree with the requests."""
        seen: set[str] = set()
        for kind in Kind:
            for held, running in ((self._running[kind], True), (self._waiting[kind], False)):
                for request_id, request in held.items():
                    assert request_id == request.request_id and request_id not in seen
                    assert request.kind is kind and request.is_running == running
                    assert running or request.num_computed_tokens == request.num_in_flight_tokens == 0
                    assert not request.is_paused or (running and kind is OFFLINE and not request.is_in_flight)
                    seen.add(request_id)
                places = [self._places.get(request_id, math.inf) for request_id in held]
                assert places == sorted(places) and (not running or math.inf not in places)
        assert seen >= set(self._places)
        assert sorted(request.request_id for request in self.online_queue()) == sorted(self._waiting[ONLINE])


def _merged(running: Iterable[str], preempted: deque[str], places: dict[str, int]) -> Iterator[str]:
    """Each in its own order, and both by their places; those that run and have none have just started."""
    for request_id in running:
        place = places.get(request_id, math.inf)
        while preempted and places[preempted[0]] < place:
            yield preempted.popleft()
        yield request_id
    yield from preempted
