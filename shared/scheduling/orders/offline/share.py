"""What clients and their batches are due, and what they were charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from shared.scheduling.orders.offline.ranks import Ranks
from shared.scheduling.orders.offline.urgency import MAX_CLIENT_URGENCY


@dataclass(frozen=True, slots=True)
class Share:
    """Whose a batch is, the weight of that client against others, and how urgent the batch is now (at least 1).
    ``goes_first``: somebody waits for each of its requests, so that they are first while it is its turn."""

    client_id: str = ""
    weight: float = 1.0
    urgency: float = 1.0
    goes_first: bool = False

    @property
    def precedence(self) -> int:
        """Among those whose turn it is: somebody waits, a window presses, neither."""
        return 2 if self.goes_first else int(self.urgency > 1.0)

    def charge(self, num_tokens: int) -> Charge:
        """For a request of so many tokens, with the most output that it may have."""
        of_client = num_tokens / (self.weight * min(self.urgency, MAX_CLIENT_URGENCY))
        return Charge(num_tokens / self.urgency, of_client)


ShareOf: TypeAlias = Callable[[str], Share]  # by batch id; asked whenever it matters, since urgency grows


class Charge(NamedTuple):
    """In tokens over what divides them."""

    of_batch: float
    of_client: float


@dataclass(slots=True)
class ClientAccount:
    client_id: str
    batches: dict[str, BatchAccount] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)  # of its batches
    num_waiting: int = 0
    charged: float = 0.0
    reached: float = 0.0  # what its batch that was served last had been charged before


@dataclass(slots=True)
class BatchAccount:
    batch_id: str
    client: ClientAccount
    num_waiting: int = 0
    num_known: int = 0  # requests, waiting or taken
    charged: float = 0.0
    precedence: int = 0  # when a request of it last came or was taken


Account = TypeVar("Account", BatchAccount, ClientAccount)


def lifted(account: Account, peers: Mapping[str, Account], reached: float) -> float:
    """What one that had nothing waiting was charged, or more: as much as the least charged of those that have, and
    where none has, as much as the one that was served last."""
    return max(account.charged, min((peer.charged for peer in peers.values() if peer.num_waiting), default=reached))
