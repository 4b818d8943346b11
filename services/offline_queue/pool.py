"""Offline requests that have no result yet: waiting here, or held by an executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice

import msgspec
from msgspec.structs import replace

from shared.protocol.codec import decode, encode
from shared.protocol.messages import GenerateRequest, OfflineLength, OfflineRequest
from shared.scheduling.offline_order import OfflineOrder
from shared.scheduling.packed_prompt import pack_tokens, unpack_tokens
from shared.scheduling.request import Kind, Request


class _Item(msgspec.Struct, gc=False):  # 100,000 that each full collection walks would delay plans
    request: bytes  # encoded, without its prompt
    prompt: bytes  # packed
    executor_id: str | None = None
    is_ending: bool = False  # the executor has finished it; its result is not seen here yet

    @classmethod
    def pack(cls, request: GenerateRequest) -> _Item:
        return cls(encode(replace(request, prompt_token_ids=[])), pack_tokens(request.prompt_token_ids))

    def unpack(self) -> GenerateRequest:
        return replace(decode(self.request, GenerateRequest), prompt_token_ids=unpack_tokens(self.prompt))


class OfflinePool:
    """Waiting requests stand in an ``OfflineOrder``. One that an executor lost returns to its old place.

    ``on_work`` is called when something becomes schedulable; ``on_discard`` with an executor id and request ids that
    it need not run any more.
    """

    def __init__(
        self, order: OfflineOrder, on_work: Callable[[], None], on_discard: Callable[[str, list[str]], None]
    ) -> None:
        self._order = order
        self._on_work = on_work
        self._on_discard = on_discard
        self._items: dict[str, _Item] = {}
        self._assigned: dict[str, dict[str, _Item]] = {}  # by executor

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_waiting(self) -> int:
        return self._order.num_waiting

    def add(self, requests: list[OfflineRequest]) -> None:
        """Schedulable from now on; ids that are here already are ignored."""
        for request in requests:
            generate = request.request
            if generate.request_id not in self._items:
                item = self._items[generate.request_id] = _Item.pack(generate)
                self._order.add(_schedulable(generate), item.prompt)
        self._on_work()

    def discard(self, request_ids: list[str]) -> None:
        """Ended or cancelled: forget them, and tell the executors that hold them."""
        held: dict[str, list[str]] = {}
        for request_id in request_ids:
            item = self._items.pop(request_id, None)
            if item is None:
                continue
            self._order.remove(request_id)
            if item.executor_id is not None:
                del self._assigned[item.executor_id][request_id]
                held.setdefault(item.executor_id, []).append(request_id)
        for executor_id, ids in held.items():
            self._on_discard(executor_id, ids)

    def in_order(self) -> Iterator[Request]:
        """What waits, next first; the pool must not change while this is read."""
        return self._order.in_order()

    def sample(self, count: int) -> list[OfflineLength]:
        """The lengths of about so many requests, evenly spread by age."""
        spread = islice(self._items.values(), 0, None, max(1, len(self._items) // count))
        requests = (item.unpack() for item in islice(spread, count))
        return [OfflineLength(len(request.prompt_token_ids), request.sampling.max_tokens) for request in requests]

    def take(self, request_id: str, executor_id: str) -> GenerateRequest:
        """A waiting request enters an executor with a plan."""
        self._assign(request_id, executor_id)
        return self._items[request_id].unpack()

    def settle(self, executor_id: str, held: Collection[str], ended: Collection[str]) -> list[str]:
        """An executor's word: it holds exactly ``held`` (offline ids), and ``ended`` have ended with a result that
        will be seen here soon. What else was assigned to it was lost on the way and waits again.
        Returns those it holds that it should not: unknown here, or held by another executor."""
        unwanted = []
        for request_id in held:
            item = self._items.get(request_id)
            if item is None or item.executor_id not in (None, executor_id):
                unwanted.append(request_id)
            elif item.executor_id is None:
                self._assign(request_id, executor_id)
        for request_id in ended:
            item = self._items.get(request_id)
            if item is not None and item.executor_id == executor_id:
                item.is_ending = True
        kept = set(held)
        assigned = self._assigned.get(executor_id, {})
        self._take_back([key for key, item in assigned.items() if key not in kept and not item.is_ending])
        return unwanted

    def release(self, executor_id: str) -> None:
        """The executor is gone: all that it held waits again."""
        self._take_back(list(self._assigned.get(executor_id, {})))

    def _assign(self, request_id: str, executor_id: str) -> None:
        self._order.take(request_id)
        item = self._items[request_id]
        item.executor_id = executor_id
        self._assigned.setdefault(executor_id, {})[request_id] = item

    def _take_back(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            item = self._items[request_id]
            assert item.executor_id is not None
            del self._assigned[item.executor_id][request_id]
            item.executor_id = None
            item.is_ending = False
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


def _schedulable(generate: GenerateRequest) -> Request:
    num_tokens = len(generate.prompt_token_ids)
    total = num_tokens + generate.sampling.max_tokens
    return Request(generate.request_id, Kind.OFFLINE, num_tokens, total, arrival_s=generate.arrival_s)
