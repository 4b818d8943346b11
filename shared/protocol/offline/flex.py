"""Between gateways and the offline-queue: single offline requests whose clients wait for the tokens (the service tier
``flex``). Tokens come from the executor directly, as those of online requests do.

The gateway owns such a request: it has the connection, and the tokens so far. The offline-queue keeps it in memory
only, for as long as its gateway names it in ``FlexHeld``; what it does not know any more, the gateway submits again.
Request ids have the form ``flex-<client>.<request>-<attempt>``: a client's flex requests are scheduled as one batch of
that client's.
"""

import msgspec

from shared.bounds import Count, Weight
from shared.protocol.requests import GenerateRequest

HOLD_PERIOD_S = 2.0  # between two FlexHeld of a gateway


class FlexSubmit(msgspec.Struct, frozen=True, tag="submit"):
    """One more request, or one more attempt at one: ``replaces`` is the id of the attempt before."""

    request: GenerateRequest
    client_id: str  # whom fairness counts it for
    client_weight: Weight = 1.0
    replaces: str = ""
    num_executors_lost: Count = 0  # while it ran there
    num_choices: Count = 1  # that come with it and are taken or refused together; 0: it is one of those


class FlexHeld(msgspec.Struct, frozen=True, tag="held"):
    """All that this gateway still wants, once in HOLD_PERIOD_S while there is something."""

    gateway_id: str
    request_ids: list[str]


FlexMessage = FlexSubmit | FlexHeld


class FlexAnswer(msgspec.Struct, frozen=True):
    """To either. ``refusal``: why a new request is not taken, ``is_final`` where it never will be. ``lost``: of those
    held, what neither waits nor runs."""

    refusal: str = ""
    is_final: bool = False
    lost: list[str] = []


def flex_batch(client_id: str) -> str:
    """Under what a client's flex requests are scheduled; no batch has such an id."""
    return f"flex-{client_id}"
