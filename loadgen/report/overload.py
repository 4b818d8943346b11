"""Whether a trace brings more than whoever serves it can do: its latencies then grow as long as it lasts."""

from collections.abc import Sequence

from loadgen.client.records import RequestRecord

MIN_REQUESTS = 20
WAITING_SHARE = 0.05  # of the requests have no token yet at the end, and
GROWTH = 3.0  # times as long as those of its first quarter those of its last one waited, and
MIN_WAIT_SHARE = 0.025  # of the window these waited in the mean: without a queue some come just before the end as well


def overload(records: Sequence[RequestRecord], start_s: float, end_s: float) -> float | None:
    """How many times more tokens of prompts and answers came within the window than were computed in it; None where
    latencies do not grow, or too little is known. A request without a token waits to the end at least."""
    came = sorted((record for record in records if record.due_s < end_s), key=lambda record: record.due_s)
    if len(came) < MIN_REQUESTS or any(record.prompt_tokens is None or record.failed for record in came):
        return None
    waits_s = [_first_token_s(record, end_s) - record.due_s for record in came]
    num_waiting = sum(_first_token_s(record, end_s) >= end_s for record in came)
    quarter = len(came) // 4
    least_s = max(GROWTH * sum(waits_s[:quarter]), MIN_WAIT_SHARE * (end_s - start_s) * quarter)
    if num_waiting < WAITING_SHARE * len(came) or sum(waits_s[-quarter:]) < least_s:
        return None
    brought = sum((record.prompt_tokens or 0) + record.num_output_tokens for record in came)
    done = sum(_computed_tokens(record, end_s) for record in came)
    return brought / done if done else None


def _first_token_s(record: RequestRecord, end_s: float) -> float:
    return record.token_times_s[0] if record.token_times_s else end_s


def _computed_tokens(record: RequestRecord, end_s: float) -> int:
    """By then: of its prompt all with its first token."""
    num_events = sum(time_s <= end_s for time_s in record.token_times_s)
    if not num_events:
        return 0
    num_tokens = record.num_output_tokens * num_events // len(record.token_times_s)
    return (record.prompt_tokens or 0) + num_tokens
