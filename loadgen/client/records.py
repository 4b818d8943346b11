"""What the client notes about each request. Times are seconds on one monotonic clock (``time.perf_counter``)."""

from dataclasses import dataclass, field

NOT_NOW = frozenset({429, 502, 503, 504})  # statuses of a server that is full, or away behind a proxy


@dataclass(slots=True)
class RequestRecord:
    """One request, filled in while its stream arrives, so that a cut-short run can still be reported.

    ``token_times_s`` has an entry for each server-sent event that carries text. Several tokens in one event are one
    pause to the client, and so one gap; ``output_tokens`` comes from the server's usage and counts every token."""

    due_s: float  # when it had to be sent
    sent_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    finished_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    status: int | None = None  # of the answer, where one has begun
    retry_after_s: float | None = None  # where the server says when to come back
    is_for_good: bool = False  # the server says that it is not to be asked again, as where a key's budget is used up
    timed_out: bool = False  # the answer was not whole in time
    disconnected: bool = False  # there was no connection, or it broke before an answer began
    goes_again: bool = False  # was not taken, and will be sent anew after a pause

    @property
    def ok(self) -> bool:
        """The answer came whole."""
        return self.finished_s is not None and self.error is None

    @property
    def failed(self) -> bool:
        """For good."""
        return self.error is not None and not self.goes_again

    @property
    def not_taken(self) -> bool:
        """The server is away, or says that it cannot do it now: later it may."""
        return self.disconnected or (self.status in NOT_NOW and not self.is_for_good)

    def is_shorter_than(self, num_tokens: int) -> bool:
        """The answer came whole with fewer, by the server's count."""
        return self.ok and self.output_tokens is not None and self.output_tokens < num_tokens

    @property
    def num_output_tokens(self) -> int:
        """The server's count, or the events seen where it gives none (a lower bound)."""
        return len(self.token_times_s) if self.output_tokens is None else self.output_tokens
