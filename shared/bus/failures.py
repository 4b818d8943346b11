"""What nats-py raises, sorted."""

import asyncio
import contextlib
from collections.abc import Iterator

import nats.errors
import nats.js.errors

from shared.errors import BusError

FAILURES = (nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError, OSError)
NO_OBJECT = (nats.js.errors.ObjectNotFoundError, nats.js.errors.ObjectDeletedError, nats.js.errors.NotFoundError)

WRONG_LAST_SEQUENCE = 10071  # JetStream: compare-and-set lost, or the key exists
NO_SUCH_MESSAGE = (10037, 10043, 10057)  # JetStream: the sequence is absent, or was deleted before
NO_SUCH_STREAM = (10059,)
SUBJECT_IS_TAKEN = 10077  # JetStream: the stream keeps one message per subject and has it
STREAM_DIFFERS = 10058  # JetStream: the stream exists with another configuration


@contextlib.contextmanager
def failing_as(doing: str) -> Iterator[None]:
    """Raises BusError, with what was being done, for any failure of the bus inside."""
    try:
        yield
    except FAILURES as error:
        raise BusError(f"{doing}: {error!r}") from error
