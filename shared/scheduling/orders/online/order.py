"""The order in which waiting online requests enter.

A table tells its order about every request that comes, starts, loses its KV or goes; whoever knows of a generated
token tells the order too. Executor and mirror feed the same events, and every step message carries the executor's
counters, so both order alike.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from shared.bounds import Finite, Weight
from shared.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class ClientCounters:
    """What an executor says about its clients. ``tokens``: weighted tokens by client, of those that it holds
    requests of and of ``last_client_id``, the client that was the last to have none waiting. ``weights``: of those of
    them whose weight is not 1."""

    tokens: dict[str, Finite]
    last_client_id: str
    weights: dict[str, Weight] = field(default_factory=dict)


class OnlineOrder:
    """First come, first served. What an order hears of, and what it is asked: as it stands it hears nothing."""

    counts_output: ClassVar[bool] = False  # it is to hear of generated tokens

    def add(self, request: Request) -> None:
        """It came; it waits, or runs already."""

    def start(self, request: Request) -> None:
        """It got KV blocks and waits no more; ``was_admitted`` is still as before."""

    def preempt(self, request: Request) -> None:
        """It lost its KV and waits again."""

    def remove(self, request: Request) -> None:
        """It is gone, from where it was."""

    def generate(self, request: Request, num_tokens: int = 1) -> None:
        """It gained output."""

    def counters(self) -> ClientCounters | None:
        """For the step message; None for an order without memory."""
        return None

    def restore(self, counters: ClientCounters | None, requests: Iterable[Request]) -> None:
        """Take over an executor's word: its counters, and the online requests that it holds, in its order."""

    def in_order(self, waiting: Mapping[str, Request]) -> Iterator[Request]:
        """``waiting`` (by id, in order of arrival, preempted ones first) in this order, as it is if each enters
        before the next is asked for. Read lazily; the table must not change meanwhile."""
        return iter(waiting.values())
