"""Errors of the load generator; each becomes one line on the command line and exit status 2."""

from shared.errors import SlackwaterError


class LoadgenError(SlackwaterError):
    """Base of what the load generator raises on purpose."""


class TraceError(LoadgenError):
    """A trace or prompt file cannot be used; the message names the file and, where there is one, the line."""


class WorkloadError(LoadgenError):
    """The wanted workload cannot be made from the trace, the prompts and the scaling given."""


class SloError(LoadgenError):
    """An SLO expression cannot be understood; the message says what to write instead."""


class ServerError(LoadgenError):
    """The server cannot be reached, or does not speak the OpenAI API as needed. ``status`` and ``retry_after_s`` are
    those of its answer, None where there was none or it said nothing of them."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
