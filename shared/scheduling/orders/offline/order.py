"""The seam of offline orders: which waiting offline request may enter an executor next."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


@dataclass(slots=True)
class Turn:
    """Whose requests an order may show.

    ``groups``: may lose members while an order is read, and none of those is shown from then on; ``passed``: ids of
    requests that were shown before in this reading. They are left out, and the rest is as if they had been taken.
    ``ends_reading``: set by an order that has shown less, since the next is to wait for room in the view's executor:
    nobody whose turn comes later is to take that meanwhile.
    """

    groups: Collection[str]
    passed: Collection[str] = frozenset()
    ends_reading: bool = False


class OfflineOrder(Protocol):
    """One order of all that waits, whosever it is. Requests come with ``add``, run between ``take`` and ``give_back``,
    and go with ``remove``. One that is given back waits at its old place.

    Of several readers, executors by their ids, an order that sees to shared prompts shows each first what shares them
    with no other's last request: who shares a prefix stays together for as long as there is other work. A single
    reader, and None, are shown the order itself, which may go on where they took from last.
    """

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        """It waits. ``prompt``: its packed tokens; ``group``: the batch that it is of, which may have its turn or not.
        Raises ValueError for an id that is here already."""

    def take(self, request_id: str, reader: str | None = None) -> None:
        """A waiting request runs at the reader. Raises KeyError for an unknown id."""

    def give_back(self, request_id: str) -> None:
        """A taken request waits again. Raises KeyError for an unknown id."""

    def remove(self, request_id: str) -> None:
        """Forget it, waiting or taken. Raises KeyError for an unknown id."""

    def leave(self, reader: str) -> None:
        """The reader takes no more."""

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        """A taken request, which will soon be removed, ended well after so many tokens of output. Told again,
        it changes nothing. Raises KeyError for an unknown id."""

    def remember(self) -> bytes:
        """What it has learnt, in at most a few 100 KB; empty where that is nothing."""

    def recall(self, data: bytes) -> None:
        """An order that knows no request takes over what another of its kind remembered. Raises ValueError where that
        is not what the bytes are."""

    def details(self) -> Mapping[str, float]:
        """Figures about it for whoever watches, by name; may be empty."""

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        """What waits of those whose turn it is, of all where None is given, next first and read lazily: what is found
        costs no look at each of the others. Reading changes nothing: until something is added, taken, given back or
        removed, the next reading is the same. The order must not change meanwhile."""

    @property
    def num_waiting(self) -> int: ...

    def check_integrity(self) -> None:
        """Raises AssertionError where the parts disagree."""


class LearnsNothing:
    """Of an order to which it is all the same how its requests end."""

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        """Nothing comes of it."""

    def remember(self) -> bytes:
        return b""

    def recall(self, data: bytes) -> None:
        if data:
            raise ValueError(f"this order remembers nothing, and was given {len(data)} bytes")

    def details(self) -> Mapping[str, float]:
        return {}
