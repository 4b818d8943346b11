"""The error that a client caused, in OpenAI's terms."""

from __future__ import annotations

from shared.errors import SlackwaterError


class RequestError(SlackwaterError):
    """A request cannot be served as it is. ``param`` names the field at fault; ``status`` is an HTTP status."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


def not_found(what: str, id: str, param: str) -> RequestError:
    """A 404 for an unknown file or batch."""
    return RequestError(f"no such {what}: {id}", param, "not_found", 404)
