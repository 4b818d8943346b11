"""What gateways ask of executors: requests of one sequence, and their ends."""

import msgspec

from shared.bounds import Amount, OptionalToken, SubjectTail, TokenId, Weight
from shared.protocol.sampling import SamplingParams
from shared.scheduling.request import Kind


class GenerateRequest(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """One request for one sequence. ``output_token_ids`` holds what an earlier executor already generated."""

    request_id: SubjectTail
    kind: Kind
    prompt_token_ids: list[TokenId]
    sampling: SamplingParams
    arrival_s: Amount  # unix time
    gateway_id: OptionalToken = ""  # where the tokens go; empty for requests of batches
    output_token_ids: list[TokenId] = []
    is_resumed: bool = False  # another executor had it, whether or not it gave it tokens
    client_id: str = ""  # whom fairness counts it for; empty for offline requests
    client_weight: Weight = 1.0  # under vtc, against 1 of other clients
    http_request_id: str = ""  # its x-request-id, for the log; clients choose it, so it need not be unique
    traceparent: str = ""  # W3C trace context of the span that it is generated in; empty where it is not traced


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests within one step and free their KV blocks."""

    request_ids: list[str]


class HeldRequests(msgspec.Struct, frozen=True):
    """All that an executor has of one gateway, told from time to time. The gateway answers with AbortRequests: those of
    them that it does not wait for."""

    executor_id: str
    epoch: str
    request_ids: list[str]


class WhoAsks(msgspec.Struct, frozen=True):
    """Whether an executor is there, asked by one that has work there. ``gateway_id``: a gateway, which is told what is
    held of it from then on: of its requests the executor may not have heard. Empty for others."""

    gateway_id: OptionalToken = ""


InboxMessage = GenerateRequest | AbortRequests
