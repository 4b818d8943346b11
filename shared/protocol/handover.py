"""Between executors: a running request moves to another with its KV (OOCO section 3.4).

The giver holds the request, its KV and its place until the taker has said that it has both; the taker reads the KV
out of the giver's memory. Who takes a request says so to all (``Taken``) before it answers the giver: from then on it
is the taker's.
"""

import msgspec

from shared.bounds import Count, OptionalToken, SubjectTail, SubjectToken, TokenId
from shared.protocol.requests import GenerateRequest
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.scheduling.placement.role import Role


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of an executor."""

    executor_id: SubjectToken
    epoch: str


class SetRole(msgspec.Struct, frozen=True):
    """Be of this pool from now on; requests that are here go on."""

    role: Role


class KVAddress(msgspec.Struct, frozen=True):
    """How others reach an executor's KV. ``layout``: what has to be the same on both sides, in words."""

    place: Place
    link: str  # the kind of link that it speaks: "nixl", "sim"
    layout: str
    peer: bytes  # what that link needs to know of it


class AskKVAddress(msgspec.Struct, frozen=True):
    """Of an executor; by whom, so that it can connect back."""

    asker: KVAddress


class Carried(msgspec.Struct, frozen=True):
    """A request as it moves: all that goes on at its taker. KV is there for the first ``num_computed_tokens`` of prompt
    and output, in ``block_ids`` of the giver, in the order of the tokens."""

    request: GenerateRequest  # with its output so far, and the sampling of the choice that is generated
    num_computed_tokens: Count
    block_ids: list[Count]
    num_cached_tokens: Count = 0  # of its prompt, found in the prefix cache when it first started
    unpublished: list[TokenId] = []  # output that nobody was told yet
    logprobs: list[TokenLogprobs] = []  # of what nobody was told yet, where they are asked for
    ended_choices: list[ChoiceOutput] = []
    prompt_scores: bytes | None = None  # where they are asked for and nobody was told them yet


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Take this request. It is answered once it is taken, or is not going to be."""

    handover_id: str
    giver: Place
    taker: Place
    carried: Carried


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """The answer to an offer did not come: say whether it was taken; if not, it is not to be taken any more."""

    handover_id: str
    giver: Place
    taker: Place


OfferMessage = Offer | Withdraw


class OfferAnswer(msgspec.Struct, frozen=True):
    """What came of an offer. ``why``: in words, where it was not taken."""

    handover_id: str
    is_taken: bool
    why: str = ""


class Taken(msgspec.Struct, frozen=True):
    """The request is the taker's from now on."""

    request_id: SubjectTail
    gateway_id: OptionalToken  # of its gateway; empty for a request of a batch
    giver: Place
    taker: Place


class Pull(msgspec.Struct, frozen=True):
    """A strict executor would take offline requests that generate: ``num_requests``, the nearer their lengths are to
    ``num_tokens``, the better (Alg. 1, line 13)."""

    taker: Place
    num_tokens: Count
    num_requests: Count
    most_tokens: Count  # that one may have
