"""Whose turn it is, while an order is read: the accounts as they will be once all that was shown is taken."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.ranks import Rank, Ranks, Reading
from shared.scheduling.orders.offline.share import BatchAccount, ClientAccount, ShareOf
from shared.scheduling.request import Request

MAX_BATCHES = 32  # that have their turn at a time: an order looks at each of them whenever it is read


class Turns:
    """Charges are told apart by cells of ``slack_tokens``. It is the turn of the clients in the lowest cell of those
    that have requests waiting, and of the batches of each in its lowest cell; first, of those of highest precedence.
    """

    def __init__(
        self, clients: Mapping[str, ClientAccount], ranks: Ranks, share_of: ShareOf, slack_tokens: int
    ) -> None:
        """``ranks``: of the clients."""
        self._clients = clients
        self._share_of = share_of
        self._slack_tokens = slack_tokens
        self._charged: dict[str, float] = {}  # clients to which something was shown
        self._batch_charged: dict[str, float] = {}
        self._num_shown: dict[str, int] = {}  # by batch
        self._precedences: dict[str, int] = {}
        self._passed: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        self._batch_ranks: dict[str, Reading] = {}  # of clients whose batches have moved
        self._client_ranks = Reading(ranks)

    def next_turn(self) -> Turn | None:
        """None where nobody waits any more."""
        self._groups = self._due()
        return Turn(self._groups, self._passed) if self._groups else None

    def charge(self, request: Request, batch: BatchAccount) -> bool:
        """It was shown. True where it is somebody's turn now whose it was not; those whose it is no more are taken out
        of the turn."""
        before = self._standing(batch)
        share = self._share_of(batch.batch_id)
        charge = share.charge(request.max_total_tokens)
        client_id, batch_id = batch.client.client_id, batch.batch_id
        self._charged[client_id] = self._charged.get(client_id, batch.client.charged) + charge.of_client
        self._batch_charged[batch_id] = self._batch_charged.get(batch_id, batch.charged) + charge.of_batch
        self._precedences[batch_id] = share.precedence
        self._passed[request.request_id] = None
        self._num_shown[batch_id] = self._num_shown.get(batch_id, 0) + 1
        if before == self._standing(batch):
            return False
        self._rank(batch)
        return self._narrow(self._due())

    def close(self, batches: Iterable[BatchAccount]) -> None:
        """Whatever else these have waiting is not shown in this reading."""
        for batch in batches:
            self._num_shown[batch.batch_id] = batch.num_waiting
            self._rank(batch)

    def _narrow(self, due: Mapping[str, None]) -> bool:
        if due.keys() - self._groups.keys():
            return True
        for batch_id in [each for each in self._groups if each not in due]:
            del self._groups[batch_id]
        return False

    def _due(self) -> dict[str, None]:
        ids = chain.from_iterable(map(self._first_batches, self._client_ranks.first()))
        return dict.fromkeys(islice(ids, MAX_BATCHES))

    def _first_batches(self, client_id: str) -> Iterator[str]:
        """Of one that has any waiting."""
        return self._batch_ranks.get(client_id, self._clients[client_id].ranks).first()

    def _rank(self, batch: BatchAccount) -> None:
        """By what it and its client were charged, and what they have waiting, by now."""
        client = batch.client
        if (ranks := self._batch_ranks.get(client.client_id)) is None:
            ranks = self._batch_ranks[client.client_id] = Reading(client.ranks)
        ranks.move(batch.batch_id, self._batch_rank(batch))
        self._client_ranks.move(client.client_id, client_rank(self._charged_of(client), ranks, self._slack_tokens))

    def _batch_rank(self, batch: BatchAccount) -> Rank | None:
        batch_id = batch.batch_id
        num_waiting = batch.num_waiting - self._num_shown.get(batch_id, 0)
        charged = self._batch_charged.get(batch_id, batch.charged)
        return batch_rank(num_waiting, charged, self._precedences.get(batch_id, batch.precedence), self._slack_tokens)

    def _standing(self, batch: BatchAccount) -> tuple[float, Rank | None]:
        """What says whether it is its turn."""
        return self._charged_of(batch.client) // self._slack_tokens, self._batch_rank(batch)

    def _charged_of(self, client: ClientAccount) -> float:
        return self._charged.get(client.client_id, client.charged)


def batch_rank(num_waiting: int, charged: float, precedence: int, slack_tokens: int) -> Rank | None:
    """Among its client's."""
    return (charged // slack_tokens, -precedence) if num_waiting else None


def client_rank(charged: float, batches: Ranks, slack_tokens: int) -> Rank | None:
    """Its precedence is that of those of its batches whose turn it is."""
    first = batches.lowest
    return None if first is None else (charged // slack_tokens, first[1])
