"""The one hierarchy of Slackwater's named errors. Each names the ids it concerns."""

from typing import TypeVar

E = TypeVar("E", bound=Exception)


class SlackwaterError(Exception):
    """Base of every error that Slackwater raises on purpose."""


class ConfigError(SlackwaterError):
    """A setting is missing or unusable; the message says what to write instead."""


class BusError(SlackwaterError):
    """The message bus cannot be reached, or refused an operation."""


class NotFoundOnBusError(BusError):
    """A key or an object is not in its bucket."""


class ConflictError(BusError):
    """A compare-and-set lost against another writer, or the key exists already."""


class TooLargeForBusError(BusError):
    """A message is over the bus's limit: it never arrives, however often it is sent."""


class NoRoomOnBusError(BusError):
    """The bus stores nothing more, not even that something is deleted, before there is room again."""


class NoResponderError(BusError):
    """No process answers on a subject within the time limit."""


class NobodyListensError(NoResponderError):
    """No process listens on a subject, as the bus says at once."""


class LeaseHeldError(SlackwaterError):
    """What one process may be at a time, another one is."""


class LeaseLostError(SlackwaterError):
    """This process is no longer what one may be at a time, and another one may be it by now: it has to end."""


class ModelError(SlackwaterError):
    """A model or tokenizer folder cannot be used."""


class ChatTemplateError(SlackwaterError):
    """A model's chat template refuses a conversation."""


class TextTooLongError(SlackwaterError):
    """A text has more tokens than are wanted."""


class NoExecutorError(SlackwaterError):
    """No executor takes requests."""


class EngineError(SlackwaterError):
    """An engine step failed; the KV contents of the requests in it are not to be trusted."""


class EngineLostError(SlackwaterError):
    """An engine can run no further step: the process that holds it has to end, and be started anew."""


class LinkError(SlackwaterError):
    """KV cannot be read from another executor's memory."""


class StackError(SlackwaterError):
    """A stack on this machine cannot start, or none is there."""


class ApiError(SlackwaterError):
    """An HTTP server cannot be reached, or answered with an error."""


class UnavailableApiError(ApiError):
    """An HTTP server cannot be reached now, or says that it may do later what was asked. ``is_full``: it has enough to
    do, and says so."""

    def __init__(self, message: str, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


def first_of(errors: BaseExceptionGroup[BaseException], *kinds: type[E]) -> E | None:
    """The first of these kinds in a task group's errors, however deep in groups; None where there is none."""
    found: BaseException | None = errors.subgroup(kinds)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert found is None or isinstance(found, kinds)
    return found
