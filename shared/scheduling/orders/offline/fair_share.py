"""Offline work shared fairly: by clients, and within a client by its batches. Any offline order decides within a batch.

Weighted fair queueing by service received, as the virtual token counters of Sheng et al. (OSDI 2024) do it for online
requests, on two levels. A request that enters is charged its prompt and the most output that it may have, over the
share of its client and over the urgency of its batch; next is the client that was charged the least, and of it the
batch that was charged the least, ties by arrival.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.urgency import MAX_CLIENT_URGENCY
from shared.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Share:
    """Whose a batch is, the weight of that client against others, and how urgent the batch is now (at least 1)."""

    client_id: str = ""
    weight: float = 1.0
    urgency: float = 1.0


class FairOrder:
    """An ``OfflineOrder`` of batches' requests, whose ids are ``<batch id>.<line>``.

    While clients A and B both have requests waiting, what they were charged differs by at most one request's charge;
    so do the batches of one client. A client or a batch that had nothing waiting is lifted to the least charged of
    those that have, or where none has, to where the last one was served: nobody saves up idle time. What is given back
    is refunded after that. One client with one batch is served in the inner order itself.
    """

    def __init__(self, make_order: Callable[[], OfflineOrder], share_of: Callable[[str], Share]) -> None:
        """``make_order``: an empty order for one batch; ``share_of``: by batch id, asked whenever a request enters."""
        self._make_order = make_order
        self._share_of = share_of
        self._sequences = itertools.count()
        self._clients: dict[str, _Client] = {}
        self._batches: dict[str, _Batch] = {}
        self._num_tokens: dict[str, int] = {}  # of each request, with the most output that it may have
        self._charges: dict[str, _Charge] = {}  # of taken requests
        self._reached = 0.0  # what the client that was served last had been charged before

    @property
    def num_waiting(self) -> int:
        return sum(client.num_waiting for client in self._clients.values())

    def add(self, request: Request, prompt: bytes) -> None:
        if request.request_id in self._num_tokens:
            raise ValueError(f"request {request.request_id} is here already")
        batch = self._batch_for(_batch_id(request.request_id))
        self._lift(batch)
        batch.order.add(request, prompt)
        batch.num_known += 1
        batch.client.num_waiting += 1
        self._num_tokens[request.request_id] = request.max_total_tokens

    def take(self, request_id: str, reader: str | None = None) -> None:
        batch_id = _batch_id(request_id)
        batch = self._batches[batch_id]
        batch.order.take(request_id, reader)
        charge = self._charges[request_id] = self._charge(batch_id, self._num_tokens[request_id])
        self._reached, batch.client.reached = batch.client.charged, batch.charged
        batch.charged += charge.of_batch
        batch.client.charged += charge.of_client
        batch.client.num_waiting -= 1

    def give_back(self, request_id: str) -> None:
        """Its charge is refunded, to where the others are by now."""
        batch = self._batches[_batch_id(request_id)]
        charge = self._charges[request_id]
        self._lift(batch)
        batch.order.give_back(request_id)
        del self._charges[request_id]
        batch.charged -= charge.of_batch
        batch.client.charged -= charge.of_client
        batch.client.num_waiting += 1

    def remove(self, request_id: str) -> None:
        batch_id = _batch_id(request_id)
        batch = self._batches[batch_id]
        batch.order.remove(request_id)
        batch.num_known -= 1
        del self._num_tokens[request_id]
        if self._charges.pop(request_id, None) is None:
            batch.client.num_waiting -= 1
        if not batch.num_known:
            del self._batches[batch_id], batch.client.batches[batch_id]
            if not batch.client.batches:
                del self._clients[batch.client.client_id]

    def leave(self, reader: str) -> None:
        for batch in self._batches.values():
            batch.order.leave(reader)

    def in_order(self, reader: str | None = None) -> Iterator[Request]:
        heads = [_Head(each.charged, each.sequence, each) for each in self._clients.values() if each.num_waiting]
        heapq.heapify(heads)
        readers = {head.holder.client_id: self._read(head.holder, reader) for head in heads}
        while heads:
            charged, sequence, client = heads[0]
            following = next(readers[client.client_id], None)
            if following is None:
                heapq.heappop(heads)
                continue
            request, charge = following
            yield request
            heapq.heapreplace(heads, _Head(charged + charge.of_client, sequence, client))

    def _read(self, client: _Client, reader: str | None) -> Iterator[tuple[Request, _Charge]]:
        """What waits of one client, and what each will be charged if the others are left alone."""
        heads = [_Head(each.charged, each.sequence, each) for each in client.batches.values() if each.num_waiting]
        heapq.heapify(heads)
        readers: dict[str, Iterator[Request]] = {}
        while heads:
            charged, sequence, batch = heads[0]
            if batch.batch_id not in readers:
                readers[batch.batch_id] = batch.order.in_order(reader)
            request = next(readers[batch.batch_id], None)
            if request is None:
                heapq.heappop(heads)
                continue
            charge = self._charge(batch.batch_id, request.max_total_tokens)
            yield request, charge
            heapq.heapreplace(heads, _Head(charged + charge.of_batch, sequence, batch))

    def _lift(self, batch: _Batch) -> None:
        """One of the batch's requests is about to wait: where none did, no idle time is saved up."""
        client = batch.client
        if not batch.num_waiting:
            batch.charged = _lifted(batch, client.batches, client.reached)
        if not client.num_waiting:
            client.charged = _lifted(client, self._clients, self._reached)

    def _charge(self, batch_id: str, num_tokens: int) -> _Charge:
        share = self._share_of(batch_id)
        of_client = num_tokens / (share.weight * min(share.urgency, MAX_CLIENT_URGENCY))
        return _Charge(num_tokens / share.urgency, of_client)

    def _batch_for(self, batch_id: str) -> _Batch:
        batch = self._batches.get(batch_id)
        if batch is None:
            client_id = self._share_of(batch_id).client_id
            client = self._clients.get(client_id)
            if client is None:
                client = self._clients[client_id] = _Client(client_id, next(self._sequences))
            batch = _Batch(batch_id, client, self._make_order(), next(self._sequences))
            self._batches[batch_id] = client.batches[batch_id] = batch
        return batch

    def check_integrity(self) -> None:
        assert sum(batch.num_known for batch in self._batches.values()) == len(self._num_tokens)
        assert self._charges.keys() <= self._num_tokens.keys()
        assert self.num_waiting == len(self._num_tokens) - len(self._charges)
        for client_id, client in self._clients.items():
            assert client.client_id == client_id and client.batches
            assert client.num_waiting == sum(batch.num_waiting for batch in client.batches.values())
        for batch_id, batch in self._batches.items():
            assert self._clients[batch.client.client_id].batches[batch_id] is batch and batch.num_known
            batch.order.check_integrity()


class _Charge(NamedTuple):
    """In tokens over what divides them."""

    of_batch: float
    of_client: float


@dataclass(slots=True)
class _Client:
    client_id: str
    sequence: int
    batches: dict[str, _Batch] = field(default_factory=dict)
    num_waiting: int = 0
    charged: float = 0.0
    reached: float = 0.0  # what its batch that was served last had been charged before


@dataclass(slots=True)
class _Batch:
    batch_id: str
    client: _Client
    order: OfflineOrder
    sequence: int
    num_known: int = 0  # requests, waiting or taken
    charged: float = 0.0

    @property
    def num_waiting(self) -> int:
        return self.order.num_waiting


_Holder = TypeVar("_Holder", _Batch, _Client)


class _Head(NamedTuple, Generic[_Holder]):
    """A place in a heap; sequences differ, so that holders are never compared."""

    charged: float
    sequence: int
    holder: _Holder


def _lifted(holder: _Holder, peers: Mapping[str, _Holder], reached: float) -> float:
    return max(holder.charged, min((peer.charged for peer in peers.values() if peer.num_waiting), default=reached))


def _batch_id(request_id: str) -> str:
    """Empty where the id has none."""
    return request_id.rpartition(".")[0]
