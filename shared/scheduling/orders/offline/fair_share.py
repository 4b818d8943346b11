"""Offline work shared fairly: by clients, and within a client by its batches. One order over all that waits decides
within that.

Weighted fair queueing by service received, as the virtual token counters of Sheng et al. (OSDI 2024) do it for online
requests, on two levels. A request that enters is charged its prompt and the most output that it may have, over the
share of its client and over the urgency of its batch. Next is what the order shows first of those that were charged
the least. Who is ahead of them by less than a slack counts as one of them: so the order can put requests that share
prompts next to each other, whosever they are, and need not change from one client's prompts to another's at each
request.
"""

import math
from collections.abc import Iterator, Mapping

from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.ranks import Rank, Ranks
from shared.scheduling.orders.offline.share import BatchAccount, Charge, ClientAccount, Share, ShareOf, lifted
from shared.scheduling.orders.offline.turns import Turns, batch_rank, client_rank
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request

SLACK_TOKENS = 8192  # to compute a shared prefix of 400 tokens anew at each turn is 5% of that


class FairShare:
    """As an ``OfflineOrder`` of batches' requests, whose ids are ``<batch id>.<line>``.

    While clients A and B both have requests waiting, what they were charged differs by less than ``slack_tokens`` and
    one request's charge; so do the batches of one client. A client or a batch that had nothing waiting is lifted to the
    least charged of those that have, or where none has, to where the last one was served: nobody saves up idle time.
    What is given back is refunded after that. One client with one batch is served in the order itself.
    """

    def __init__(
        self, order: OfflineOrder, share_of: ShareOf = lambda batch_id: Share(), slack_tokens: int = SLACK_TOKENS
    ) -> None:
        """``order``: an empty one; ``slack_tokens``: at least 1."""
        self._order = order
        self._share_of = share_of
        self._slack_tokens = slack_tokens
        self._clients: dict[str, ClientAccount] = {}
        self._ranks = Ranks()  # of the clients
        self._batches: dict[str, BatchAccount] = {}
        self._num_tokens: dict[str, int] = {}  # of each request, with the most output that it may have
        self._charges: dict[str, Charge] = {}  # of taken requests
        self._owing: dict[str, float] = {}  # what clients were charged that have nothing here, where that is most
        self._reached = 0.0  # what the client that was served last had been charged before

    @property
    def num_waiting(self) -> int:
        return self._order.num_waiting

    def add(self, request: Request, prompt: bytes) -> None:
        batch_id = _batch_id(request.request_id)
        self._order.add(request, prompt, batch_id)
        share = self._share_of(batch_id)
        batch = self._batch_of(batch_id, share.client_id)
        self._lift(batch)
        batch.precedence = share.precedence
        batch.num_known += 1
        self._wait(batch, 1)
        self._num_tokens[request.request_id] = request.max_total_tokens

    def take(self, request_id: str, reader: str | None = None) -> None:
        batch = self._batches[_batch_id(request_id)]
        self._order.take(request_id, reader)
        share = self._share_of(batch.batch_id)
        charge = self._charges[request_id] = share.charge(self._num_tokens[request_id])
        batch.precedence = share.precedence
        self._reached, batch.client.reached = batch.client.charged, batch.charged
        batch.charged += charge.of_batch
        batch.client.charged += charge.of_client
        self._wait(batch, -1)

    def give_back(self, request_id: str) -> None:
        """Its charge is refunded, to where the others are by now."""
        batch = self._batches[_batch_id(request_id)]
        charge = self._charges.pop(request_id)
        self._lift(batch)
        self._order.give_back(request_id)
        batch.charged -= charge.of_batch
        batch.client.charged -= charge.of_client
        self._wait(batch, 1)

    def remove(self, request_id: str) -> None:
        batch = self._batches[_batch_id(request_id)]
        self._order.remove(request_id)
        batch.num_known -= 1
        del self._num_tokens[request_id]
        if self._charges.pop(request_id, None) is None:
            self._wait(batch, -1)
        if not batch.num_known:
            del self._batches[batch.batch_id], batch.client.batches[batch.batch_id]
            batch.client.ranks.forget(batch.batch_id)
            if not batch.client.batches:
                self._forget(batch.client)

    def leave(self, reader: str) -> None:
        self._order.leave(reader)

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        """As ``OfflineOrder.learn``; so are the next three."""
        self._order.learn(request_id, num_output_tokens)

    def remember(self) -> bytes:
        return self._order.remember()

    def recall(self, data: bytes) -> None:
        self._order.recall(data)

    def details(self) -> Mapping[str, float]:
        return self._order.details()

    def in_order(self, view: OfflineView = NOBODY) -> Iterator[Request]:
        """What waits, next first, read lazily, as it is if each is taken before the next. Nothing must change
        meanwhile."""
        turns = Turns(self._clients, self._ranks, self._share_of, self._slack_tokens)
        while (turn := turns.next_turn()) is not None:
            for request in self._order.in_order(view, turn):
                yield request
                if turns.charge(request, self._batches[_batch_id(request.request_id)]):
                    break
            else:
                if turn.ends_reading:
                    return
                turns.close(self._batches[batch_id] for batch_id in turn.groups)

    def _wait(self, batch: BatchAccount, change: int) -> None:
        """So many more wait; what it and its client were charged, and their precedence, is as it is to be."""
        client = batch.client
        batch.num_waiting += change
        client.num_waiting += change
        client.ranks.move(batch.batch_id, self._batch_rank(batch))
        self._ranks.move(client.client_id, client_rank(client.charged, client.ranks, self._slack_tokens))

    def _batch_rank(self, batch: BatchAccount) -> Rank | None:
        return batch_rank(batch.num_waiting, batch.charged, batch.precedence, self._slack_tokens)

    def _lift(self, batch: BatchAccount) -> None:
        """One of the batch's requests is about to wait: where none did, no idle time is saved up."""
        client = batch.client
        if not batch.num_waiting:
            batch.charged = lifted(batch, client.batches, client.reached)
        if not client.num_waiting:
            client.charged = lifted(client, self._clients, self._reached)

    def _batch_of(self, batch_id: str, client_id: str) -> BatchAccount:
        """The batch; a new one is this client's."""
        batch = self._batches.get(batch_id)
        if batch is None:
            client = self._clients.get(client_id)
            if client is None:
                charged = self._owing.pop(client_id, 0.0)
                client = self._clients[client_id] = ClientAccount(client_id, charged=charged)
                self._ranks.add(client_id)
            client.ranks.add(batch_id)
            batch = self._batches[batch_id] = client.batches[batch_id] = BatchAccount(batch_id, client)
        return batch

    def _forget(self, client: ClientAccount) -> None:
        """It has nothing here. What it was charged beyond those that wait is kept until they were charged as much: who
        sends one request after another gets no more than who sends all at once. Where nobody waits nobody is owed."""
        del self._clients[client.client_id]
        self._ranks.forget(client.client_id)
        self._owing[client.client_id] = client.charged
        waiting = [each.charged for each in self._clients.values() if each.num_waiting]
        floor = min(waiting, default=math.inf)
        self._owing = {key: charged for key, charged in self._owing.items() if charged > floor}

    def check_integrity(self) -> None:
        """Raises AssertionError where the accounts and the order disagree."""
        self._order.check_integrity()
        assert sum(batch.num_known for batch in self._batches.values()) == len(self._num_tokens)
        assert self._charges.keys() <= self._num_tokens.keys()
        assert self.num_waiting == len(self._num_tokens) - len(self._charges)
        assert self.num_waiting == sum(client.num_waiting for client in self._clients.values())
        for client_id, client in self._clients.items():
            assert client.client_id == client_id and client.batches
            assert client.num_waiting == sum(batch.num_waiting for batch in client.batches.values())
            client.ranks.check_integrity({each.batch_id: self._batch_rank(each) for each in client.batches.values()})
        ranks = {key: client_rank(each.charged, each.ranks, self._slack_tokens) for key, each in self._clients.items()}
        self._ranks.check_integrity(ranks)
        for batch_id, batch in self._batches.items():
            assert self._clients[batch.client.client_id].batches[batch_id] is batch and batch.num_known


def _batch_id(request_id: str) -> str:
    """Empty where the id has none."""
    return request_id.rpartition(".")[0]
