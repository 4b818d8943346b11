"""Whose turn it is, while an order is read: the accounts as they will be once all that was shown is taken."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TypeAlias

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.share import BatchAccount, ClientAccount, ShareOf
from shared.scheduling.request import Request

_Rank: TypeAlias = tuple[float, int]  # the cell; and, lowest first, minus the precedence
MAX_BATCHES = 32  # that have their turn at a time: an order looks at each of them whenever it is read


class Turns:
    """Charges are told apart by cells of ``slack_tokens``. It is the turn of the clients in the lowest cell of those
    that have requests waiting, and of the batches of each in its lowest cell; first, of those of highest precedence.
    """

    def __init__(self, clients: Mapping[str, ClientAccount], share_of: ShareOf, slack_tokens: int) -> None:
        self._clients = clients
        self._share_of = share_of
        self._slack_tokens = slack_tokens
        self._charged: dict[str, float] = {}  # clients to which something was shown
        self._num_shown: dict[str, int] = {}
        self._batch_charged: dict[str, float] = {}
        self._batch_num_shown: dict[str, int] = {}
        self._precedences: dict[str, int] = {}
        self._passed: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        waiting = [each for each in clients.values() if each.num_waiting]
        self._batch_ranks = {  # of clients with more than one
            each.client_id: _Ranks(self._ranked_batches(each)) for each in waiting if len(each.batches) > 1
        }
        self._client_ranks = _Ranks((each.client_id, self._client_rank(each)) for each in waiting)

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
        self._show(batch, 1)
        if before == self._standing(batch):
            return False
        self._rank(batch)
        return self._narrow(self._due())

    def close(self, batches: Iterable[BatchAccount]) -> None:
        """Whatever else these have waiting is not shown in this reading."""
        for batch in batches:
            self._show(batch, self._num_left(batch))
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

    def _first_batches(self, client_id: str) -> Iterable[str]:
        """Of one that has any waiting."""
        ranks = self._batch_ranks.get(client_id)
        return self._clients[client_id].batches if ranks is None else ranks.first()

    def _rank(self, batch: BatchAccount) -> None:
        """By what it and its client were charged, and what they have waiting, by now."""
        client = batch.client
        if (ranks := self._batch_ranks.get(client.client_id)) is not None:
            ranks.move(batch.batch_id, self._batch_rank(batch))
        self._client_ranks.move(client.client_id, self._client_rank(client))

    def _client_rank(self, client: ClientAccount) -> _Rank | None:
        """Its precedence is that of those of its batches whose turn it is."""
        ranks = self._batch_ranks.get(client.client_id)
        first = self._batch_rank(*client.batches.values()) if ranks is None else ranks.lowest
        return None if first is None else (self._cell(client), first[1])

    def _batch_rank(self, batch: BatchAccount) -> _Rank | None:
        if not self._num_left(batch):
            return None
        batch_id = batch.batch_id
        cell = self._batch_charged.get(batch_id, batch.charged) // self._slack_tokens
        return cell, -self._precedences.get(batch_id, batch.precedence)

    def _ranked_batches(self, client: ClientAccount) -> Iterator[tuple[str, _Rank | None]]:
        return ((each.batch_id, self._batch_rank(each)) for each in client.batches.values())

    def _standing(self, batch: BatchAccount) -> tuple[float, _Rank | None]:
        """What says whether it is its turn."""
        return self._cell(batch.client), self._batch_rank(batch)

    def _cell(self, client: ClientAccount) -> float:
        return self._charged.get(client.client_id, client.charged) // self._slack_tokens

    def _num_left(self, batch: BatchAccount) -> int:
        return batch.num_waiting - self._batch_num_shown.get(batch.batch_id, 0)

    def _show(self, batch: BatchAccount, count: int) -> None:
        for counts, key in ((self._num_shown, batch.client.client_id), (self._batch_num_shown, batch.batch_id)):
            counts[key] = counts.get(key, 0) + count


class _Ranks:
    """Names in their order, each at a rank or, where it has nothing waiting, at none. A move costs no look at each of
    the others."""

    def __init__(self, ranked: Iterable[tuple[str, _Rank | None]]) -> None:
        """In their order."""
        self._names: list[str] = []
        self._places: dict[str, int] = {}
        self._ranks: dict[str, _Rank | None] = {}
        self._places_at: dict[_Rank, list[int]] = {}  # ascending; as many ranks as cells, which are few
        for place, (name, rank) in enumerate(ranked):
            self._names.append(name)
            self._places[name], self._ranks[name] = place, rank
            if rank is not None:
                self._places_at.setdefault(rank, []).append(place)

    @property
    def lowest(self) -> _Rank | None:
        return min(self._places_at, default=None)

    def first(self) -> Iterator[str]:
        """Those at the lowest rank; nobody may move meanwhile."""
        lowest = self.lowest
        return iter(()) if lowest is None else map(self._names.__getitem__, self._places_at[lowest])

    def move(self, name: str, rank: _Rank | None) -> None:
        before, place = self._ranks[name], self._places[name]
        if before is not None:
            places = self._places_at[before]
            del places[bisect_left(places, place)]
            if not places:
                del self._places_at[before]
        if rank is not None:
            insort(self._places_at.setdefault(rank, []), place)
        self._ranks[name] = rank
