"""The busiest part of a trace."""

from collections import deque
from collections.abc import Iterable

from loadgen.workload.traces import TraceRequest


def busiest_start_s(requests: Iterable[TraceRequest], length_s: float) -> float:
    """Where the ``length_s`` seconds begin in which most tokens, of prompts and of answers, arrive: with a request, and
    the earliest of equals. Tokens, since a few long prompts are more work than many short ones (Echo section 5.4 has
    "the peak workload"). Raises ValueError without requests; they come in order of arrival."""
    held: deque[TraceRequest] = deque()  # those of [its first, its first + length_s)
    num_tokens = most = 0
    start_s: float | None = None
    for request in requests:
        while held and request.arrival_s >= held[0].arrival_s + length_s:
            num_tokens -= _tokens(held.popleft())
        held.append(request)
        num_tokens += _tokens(request)
        if num_tokens > most or start_s is None:
            most, start_s = num_tokens, held[0].arrival_s
    if start_s is None:
        raise ValueError("a trace without requests has no busiest part")
    return start_s


def _tokens(request: TraceRequest) -> int:
    return request.num_prompt_tokens + request.num_output_tokens
