"""Whose turn it is, while an order is read: the accounts as they will be once all that was shown is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.share import BatchAccount, ClientAccount, ShareOf
from shared.scheduling.request import Request


class Turns:
    """Charges are told apart by cells of ``slack_tokens``. It is the turn of the clients in the lowest cell of those
    that have requests waiting, and of the batches of each in its lowest cell; first, of those of highest precedence.
    """

    def __init__(self, clients: Mapping[str, ClientAccount], share_of: ShareOf, slack_tokens: int) -> None:
        self._clients = clients
        self._share_of = share_of
        self._slack_tokens = slack_tokens
        self._charged: dict[str, float] = {}  # clients that were charged here
        self._batch_charged: dict[str, float] = {}
        self._num_shown: dict[str, int] = {}  # by client
        self._batch_num_shown: dict[str, int] = {}
        self._passed: dict[str, None] = {}
        self._groups: dict[str, None] = {}

    def next_turn(self) -> Turn | None:
        """None where nobody waits any more."""
        self._groups = self._due()
        return Turn(self._groups, self._passed) if self._groups else None

    def charge(self, request: Request, batch: BatchAccount) -> bool:
        """It was shown. True where it is somebody's turn now whose it was not; those whose it is no more are taken out
        of the turn."""
        client, charge = batch.client, self._share_of(batch.batch_id).charge(request.max_total_tokens)
        self._passed[request.request_id] = None
        cells = self._cell(client), self._batch_cell(batch)
        self._charged[client.client_id] = self._charged.get(client.client_id, client.charged) + charge.of_client
        self._batch_charged[batch.batch_id] = self._batch_charged.get(batch.batch_id, batch.charged) + charge.of_batch
        self._show(batch, 1)
        if cells == (self._cell(client), self._batch_cell(batch)) and self._num_left(batch):
            return False
        return self._narrow(self._due())

    def close(self, batches: Iterable[BatchAccount]) -> None:
        """Whatever else these have waiting is not shown in this reading."""
        for batch in batches:
            self._show(batch, self._num_left(batch))

    def _narrow(self, due: Mapping[str, None]) -> bool:
        if due.keys() - self._groups.keys():
            return True
        for batch_id in [each for each in self._groups if each not in due]:
            del self._groups[batch_id]
        return False

    def _due(self) -> dict[str, None]:
        clients = [each for each in self._clients.values() if self._num_client_left(each)]
        cell = min(map(self._cell, clients), default=0.0)
        due = [batch for each in clients if self._cell(each) == cell for batch in self._due_of(each)]
        precedences = {batch.batch_id: self._share_of(batch.batch_id).precedence for batch in due}
        first = max(precedences.values(), default=0)
        return dict.fromkeys(batch_id for batch_id, precedence in precedences.items() if precedence == first)

    def _due_of(self, client: ClientAccount) -> list[BatchAccount]:
        batches = [each for each in client.batches.values() if self._num_left(each)]
        cell = min(map(self._batch_cell, batches))
        return [each for each in batches if self._batch_cell(each) == cell]

    def _cell(self, client: ClientAccount) -> float:
        return self._charged.get(client.client_id, client.charged) // self._slack_tokens

    def _batch_cell(self, batch: BatchAccount) -> float:
        return self._batch_charged.get(batch.batch_id, batch.charged) // self._slack_tokens

    def _num_client_left(self, client: ClientAccount) -> int:
        return client.num_waiting - self._num_shown.get(client.client_id, 0)

    def _num_left(self, batch: BatchAccount) -> int:
        return batch.num_waiting - self._batch_num_shown.get(batch.batch_id, 0)

    def _show(self, batch: BatchAccount, count: int) -> None:
        for counts, key in ((self._num_shown, batch.client.client_id), (self._batch_num_shown, batch.batch_id)):
            counts[key] = counts.get(key, 0) + count
