"""Offline requests that have no result yet: waiting here, or held by an executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

import msgspec
from msgspec.structs import replace

from shared.offline_queue.prompt_demand import PromptDemand
from shared.protocol.codec import decode, encode
from shared.protocol.offline.requests import OfflineLength, OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.scheduling.kv.block_hash import KVScope
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.packed_prompt import marked, pack_tokens, unpack_tokens
from shared.scheduling.request import Kind, Request

SUSPECT_FAILURES = 2


class Packed(Protocol):
    """A request as it is kept while it waits."""

    @property
    def prompt(self) -> bytes:
        """Its packed tokens, or the first of them: as many as an order is to know; ``marked`` by its group."""

    @property
    def scope(self) -> KVScope:
        """The sampling's."""

    @property
    def num_bytes(self) -> int:
        """About what it takes in a message."""

    def unpack(self) -> GenerateRequest: ...


class _Item(msgspec.Struct, gc=False):  # 100,000 that each full collection walks would delay plans
    packed: Packed
    executor_id: str | None = None
    is_ending: bool = False  # the executor has finished it; its result is not seen here yet
    has_failed: bool = False  # on the executor, which has not said yet that it has ended
    num_failures: int = 0


class PackedRequest(msgspec.Struct, gc=False):
    """In as few bytes as it takes."""

    request: bytes  # encoded, without its prompt
    prompt: bytes  # packed and marked
    scope: KVScope

    @classmethod
    def of(cls, request: GenerateRequest) -> PackedRequest:
        rest = encode(replace(request, prompt_token_ids=[]))
        scope = request.sampling.kv_scope
        return cls(rest, marked(pack_tokens(request.prompt_token_ids), scope.group), scope)

    @property
    def num_bytes(self) -> int:
        return len(self.request) + len(self.prompt)

    def unpack(self) -> GenerateRequest:
        token_ids = unpack_tokens(marked(self.prompt, self.scope.group))
        return replace(decode(self.request, GenerateRequest), prompt_token_ids=token_ids)


class OfflinePool:
    """Waiting requests stand in an offline order under fair share. One that an executor lost returns to its old place.

    ``on_work`` is called when something becomes schedulable; ``on_discard`` with an executor id and request ids that
    it need not run any more. ``is_awaited`` knows requests that are not here yet and have no result: an executor that
    holds one, from the time before a restart, goes on with it.
    """

    def __init__(
        self,
        order: FairShare,
        on_work: Callable[[], None],
        on_discard: Callable[[str, list[str]], None],
        is_awaited: Callable[[str], bool] = lambda request_id: False,
    ) -> None:
        self._order = order
        self._is_awaited = is_awaited
        self._on_work = on_work
        self._on_discard = on_discard
        self._items: dict[str, _Item] = {}
        self._demands: dict[int, PromptDemand] = {}  # by block size, of those who ask
        self._assigned: dict[str, dict[str, _Item]] = {}  # by executor
        self.num_learnt = 0  # since its start, of what its order was told

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._items

    @property
    def num_waiting(self) -> int:
        return self._order.num_waiting

    def add(self, requests: list[OfflineRequest]) -> None:
        """Schedulable from now on; ids that are here already are ignored."""
        self._enter(each.request for each in requests)

    def enter(self, request: GenerateRequest) -> None:
        """One that no batch holds, otherwise as ``add``; what it has generated so far comes with it."""
        self._enter([request])

    def keep(self, requests: Iterable[tuple[Request, Packed]]) -> None:
        """As ``add``: each as it is to be scheduled, and as it is kept."""
        for request, packed in requests:
            if request.request_id not in self._items:
                self._items[request.request_id] = _Item(packed)
                self._order.add(request, packed.prompt)
                for demand in self._demands.values():
                    demand.add(request.request_id, packed.prompt)
        self._on_work()

    def demand(self, block_size: int) -> PromptDemand:
        """How many of its requests begin with what, by blocks of so many tokens. It is kept up from the first time on
        that somebody asks for it, which costs about as much as an order that goes by prompts."""
        demand = self._demands.get(block_size)
        if demand is None:
            there = ((request_id, item.packed.prompt) for request_id, item in self._items.items())
            demand = self._demands[block_size] = PromptDemand(block_size, there)
        return demand

    def retry(self, request_id: str, num_failures: int) -> None:
        """A run of it failed, the so many-th: it waits again, where it does not run elsewhere; unknown ids are
        ignored."""
        item = self._items.get(request_id)
        if item is None:
            return
        item.num_failures = num_failures
        if item.is_ending:
            self._take_back([request_id])
        else:
            item.has_failed = item.executor_id is not None

    def has_ended(self, request_id: str) -> bool:
        """Its executor has finished it."""
        item = self._items.get(request_id)
        return item is not None and item.is_ending

    def is_held(self, request_id: str, executor_id: str) -> bool:
        """By this executor, as far as is known."""
        return request_id in self._assigned.get(executor_id, ())

    def holds_any(self, executor_id: str) -> bool:
        """The executor has one or more, as far as is known."""
        return bool(self._assigned.get(executor_id))

    @property
    def has_running(self) -> bool:
        """An executor has one, as far as is known."""
        return any(self._assigned.values())

    def is_suspect(self, request_id: str) -> bool:
        """It was there too often when something broke."""
        return self._items[request_id].num_failures >= SUSPECT_FAILURES

    def holds_suspect(self, executor_id: str) -> bool:
        """The executor runs one already. A second one would hide which of them breaks it. One that has ended there is
        none: nothing would be planned when its result is seen."""
        there = self._assigned.get(executor_id, {}).values()
        return any(item.num_failures >= SUSPECT_FAILURES and not item.is_ending for item in there)

    def discard(self, request_ids: list[str]) -> None:
        """Ended or cancelled: forget them, and tell the executors that hold them."""
        held: dict[str, list[str]] = {}
        for request_id in request_ids:
            item = self._items.pop(request_id, None)
            if item is None:
                continue
            self._order.remove(request_id)
            for demand in self._demands.values():
                demand.remove(request_id)
            if item.executor_id is not None:
                del self._assigned[item.executor_id][request_id]
                held.setdefault(item.executor_id, []).append(request_id)
        for executor_id, ids in held.items():
            self._on_discard(executor_id, ids)

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        """It ended well, anywhere, after so many tokens of output; to be said before it is discarded. Told again, or
        of an unknown id, it changes nothing."""
        if request_id in self._items:
            self._order.learn(request_id, num_output_tokens)
            self.num_learnt += 1

    def remember(self) -> bytes:
        """What its order has learnt, for the pool of another time: see ``OfflineOrder``, as for the next two."""
        return self._order.remember()

    def recall(self, data: bytes) -> None:
        """Before anything is added."""
        self._order.recall(data)

    def details(self) -> Mapping[str, float]:
        return self._order.details()

    def in_order(self, view: OfflineView = NOBODY) -> Iterator[Request]:
        """What waits, next first, as the view's reader is to take it; the pool must not change while this is read."""
        return self._order.in_order(view)

    def prompt(self, request_id: str) -> bytes | None:
        """As an order knows it; None for an unknown id."""
        item = self._items.get(request_id)
        return None if item is None else item.packed.prompt

    def scoped_prompt(self, request_id: str) -> tuple[bytes, KVScope] | None:
        """Its packed tokens, as far as an order knows them, and its scope; None for an unknown id."""
        item = self._items.get(request_id)
        if item is None:
            return None
        scope = item.packed.scope
        return marked(item.packed.prompt, scope.group), scope

    def adapter(self, request_id: str) -> str:
        """That it is to run with; empty for none, and for an unknown id."""
        item = self._items.get(request_id)
        return "" if item is None else item.packed.scope.adapter

    def num_bytes(self, request_id: str) -> int:
        """About what the request takes in a message."""
        return self._items[request_id].packed.num_bytes

    def request(self, request_id: str) -> GenerateRequest:
        """As it was added."""
        return self._items[request_id].packed.unpack()

    def sample(self, count: int) -> list[OfflineLength]:
        """The lengths of about so many requests, evenly spread by age."""
        spread = islice(self._items.values(), 0, None, max(1, len(self._items) // count))
        requests = (item.packed.unpack() for item in islice(spread, count))
        return [OfflineLength(len(request.prompt_token_ids), request.sampling.max_tokens) for request in requests]

    def take(self, request_id: str, executor_id: str) -> GenerateRequest:
        """A waiting request enters an executor with a plan."""
        self._assign(request_id, executor_id)
        return self._items[request_id].packed.unpack()

    def move(self, request_id: str, giver_id: str, taker_id: str) -> bool:
        """A request that runs at the giver has gone to the taker, with all that it has generated. One that waits here,
        since its giver is gone, is the taker's as well. False where the taker is not to have it: it is over, or
        another executor's."""
        item = self._items.get(request_id)
        if item is None:
            return self._is_awaited(request_id)
        if item.executor_id is None:
            self._assign(request_id, taker_id)
        elif item.executor_id == giver_id and not item.is_ending:
            del self._assigned[giver_id][request_id]
            self._hold(request_id, item, taker_id)
        return item.executor_id == taker_id and not item.is_ending

    def settle(
        self, executor_id: str, held: Collection[str], ended: Collection[str], with_error: Collection[str] = ()
    ) -> list[str]:
        """An executor's word: it holds exactly ``held`` (offline ids), and ``ended``, some of them ``with_error``, have
        ended with a result or a failure that will be seen here soon, or was seen already. What else was assigned to
        it was lost on the way and waits again.
        Returns those it holds that it should not: unknown here, or held by another executor."""
        unwanted = []
        assigned = self._assigned.setdefault(executor_id, {})
        for request_id in [each for each in held if each not in assigned]:
            item = self._items.get(request_id)
            if item is None:
                if not self._is_awaited(request_id):
                    unwanted.append(request_id)
            elif item.executor_id is None:
                self._assign(request_id, executor_id)
            elif item.executor_id != executor_id:
                unwanted.append(request_id)
        for request_id in ended:
            item = self._items.get(request_id)
            if item is not None and item.executor_id == executor_id:
                item.is_ending = not (item.has_failed and request_id in with_error)
        kept = set(held)
        self._take_back([key for key, item in assigned.items() if key not in kept and not item.is_ending])
        return unwanted

    def release(self, executor_id: str) -> list[str]:
        """The executor is gone: all that it held waits again. What it had not finished is returned."""
        assigned = self._assigned.get(executor_id, {})
        unfinished = [request_id for request_id, item in assigned.items() if not item.is_ending]
        self._take_back(list(assigned))
        self._assigned.pop(executor_id, None)
        self._order.leave(executor_id)
        return unfinished

    def _enter(self, requests: Iterable[GenerateRequest]) -> None:
        new = (each for each in requests if each.request_id not in self._items)
        self.keep((_schedulable(each), PackedRequest.of(each)) for each in new)

    def _assign(self, request_id: str, executor_id: str) -> None:
        self._order.take(request_id, executor_id)
        self._hold(request_id, self._items[request_id], executor_id)

    def _hold(self, request_id: str, item: _Item, executor_id: str) -> None:
        item.executor_id = executor_id
        self._assigned.setdefault(executor_id, {})[request_id] = item

    def _take_back(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            item = self._items[request_id]
            assert item.executor_id is not None
            del self._assigned[item.executor_id][request_id]
            item.executor_id = None
            item.is_ending = item.has_failed = False
            self._order.give_back(request_id)
        if request_ids:
            self._on_work()

    def check_integrity(self) -> None:
        """Raises AssertionError where the order and the items disagree."""
        self._order.check_integrity()
        waiting = {request_id for request_id, item in self._items.items() if item.executor_id is None}
        assert waiting == {request.request_id for request in self._order.in_order()}
        assigned = {key: executor_id for executor_id, items in self._assigned.items() for key in items}
        assert assigned == {key: i.executor_id for key, i in self._items.items() if i.executor_id is not None}
        for demand in self._demands.values():
            demand.check_integrity()
            assert demand.num_requests == len(self._items)


def _schedulable(generate: GenerateRequest) -> Request:
    num_prompt_tokens = len(generate.prompt_token_ids)
    num_tokens = num_prompt_tokens + len(generate.output_token_ids)
    total = num_prompt_tokens + generate.sampling.max_tokens
    return Request(
        generate.request_id,
        Kind.OFFLINE,
        num_tokens,
        total,
        arrival_s=generate.arrival_s,
        ends_at_limit=generate.sampling.ends_at_limit,
    )
