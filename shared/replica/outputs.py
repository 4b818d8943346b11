"""What is told of a sequence: the tokens that it gained, and its end."""

from dataclasses import dataclass

from shared.protocol.sampling import FinishReason
from shared.protocol.steps import EndedRequest
from shared.protocol.tokens import TokenOutput
from shared.replica.sequence import LiveSequence

AddressedOutput = tuple[str, TokenOutput]  # the gateway that it is for (empty: none), and what it gained


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that left, and why."""

    sequence: LiveSequence
    finish_reason: FinishReason
    error: str = ""
    may_be_retried: bool = False  # with an error that another run need not have


def token_output(sequence: LiveSequence) -> TokenOutput:
    """The tokens that it gained since the last one."""
    token_ids, logprobs = sequence.take_unpublished()
    return TokenOutput(
        sequence.request.request_id,
        token_ids,
        None,
        sequence.num_cached_tokens,
        "",
        len(sequence.token_ids) - sequence.num_prompt_tokens,
        logprobs,
        None if sequence.scoring is None else sequence.take_prompt_scores(),
    )


def final_output(ended: Ended) -> TokenOutput:
    """The last message about a sequence: its unsent tokens and why it ended."""
    sequence = ended.sequence
    return TokenOutput(
        sequence.request_id,
        sequence.unpublished,
        ended.finish_reason,
        sequence.num_cached_tokens,
        ended.error,
        sequence.num_output_tokens,
        None if sequence.sampling.logprobs is None else sequence.logprobs,
        sequence.take_prompt_scores(),
        sequence.embedding,
    )


def ended_request(ended: Ended) -> EndedRequest:
    """For the step message."""
    sequence = ended.sequence
    return EndedRequest(sequence.request_id, ended.finish_reason, sequence.num_output_tokens)
