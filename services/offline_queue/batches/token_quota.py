"""Whether the tokens of a batch are more than its owner may have queued."""

from services.offline_queue.batches.tools import BatchTools
from shared.protocol.offline.batches import BatchRecord, LineError

TOKEN_LIMIT_EXCEEDED = "token_limit_exceeded"  # OpenAI's code of a batch that fails for it


def over_token_quota(tools: BatchTools, record: BatchRecord, num_tokens: int) -> LineError | None:
    """What fails a batch of which so many tokens were read so far, prompts and longest answers; None where all that its
    owner's batches have queued by now, these with them, is within the quota of the batch's key."""
    key = tools.spending.key_of(record.client_id)
    if key is None or key.max_queued_tokens is None:
        return None
    num_queued = tools.queued_tokens(record.owner)
    if num_queued <= key.max_queued_tokens:
        return None
    message = (
        f"Enqueued token limit reached for {key.named_owner}: at most {key.max_queued_tokens:,}, prompts and longest "
        f"answers together; other batches have {num_queued - num_tokens:,}, the lines of this one up to here "
        f"{num_tokens:,}. "
        "Try again once those are done, or split the file."
    )
    return LineError(TOKEN_LIMIT_EXCEEDED, message)
