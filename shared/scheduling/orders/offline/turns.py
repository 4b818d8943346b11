"""Whose turn it is, while an order is read: the accounts as they will be once all that was shown is taken."""

from collections.abc import Iterable, Mapping
from itertools import islice

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.share import BatchAccount, ClientAccount, ShareOf
from shared.scheduling.request import Request

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
        if before == self._standing(batch) and self._num_left(batch):
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
        shown = self._num_shown
        clients = [each for each in self._clients.values() if each.num_waiting > shown.get(each.client_id, 0)]
        cells = [self._cell(each) for each in clients]
        lowest = min(cells, default=0.0)
        due = [
            batch for client, cell in zip(clients, cells, strict=True) if cell == lowest for batch in self._of(client)
        ]
        precedences = [self._precedences.get(batch.batch_id, batch.precedence) for batch in due]
        first = max(precedences, default=0)
        ids = (batch.batch_id for batch, each in zip(due, precedences, strict=True) if each == first)
        return dict.fromkeys(islice(ids, MAX_BATCHES))

    def _of(self, client: ClientAccount) -> list[BatchAccount]:
        """Its batches in the lowest cell; one that has anything waiting has such batches."""
        charged, shown, slack = self._batch_charged, self._batch_num_shown, self._slack_tokens
        batches = [each for each in client.batches.values() if each.num_waiting > shown.get(each.batch_id, 0)]
        if len(batches) == 1:
            return batches
        cells = [charged.get(each.batch_id, each.charged) // slack for each in batches]
        lowest = min(cells)
        return [each for each, cell in zip(batches, cells, strict=True) if cell == lowest]

    def _standing(self, batch: BatchAccount) -> tuple[float, float, int]:
        """What says whether it is its turn, where it has anything waiting."""
        batch_id = batch.batch_id
        batch_cell = self._batch_charged.get(batch_id, batch.charged) // self._slack_tokens
        return self._cell(batch.client), batch_cell, self._precedences.get(batch_id, batch.precedence)

    def _cell(self, client: ClientAccount) -> float:
        return self._charged.get(client.client_id, client.charged) // self._slack_tokens

    def _num_left(self, batch: BatchAccount) -> int:
        return batch.num_waiting - self._batch_num_shown.get(batch.batch_id, 0)

    def _show(self, batch: BatchAccount, count: int) -> None:
        for counts, key in ((self._num_shown, batch.client.client_id), (self._batch_num_shown, batch.batch_id)):
            counts[key] = counts.get(key, 0) + count
