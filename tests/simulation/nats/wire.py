"""What nats-py does with bytes, where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import _HEADER_KEY_RE, _HEADER_VALUE_NEWLINES

from tests.simulation.nats.session import Headers

if TYPE_CHECKING:
    from tests.simulation.nats.client import MemoryClient


class Transport:
    """What nats-py's own ``close`` does with its socket."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    def writelines(self, _: list[bytes]) -> None:
        self._client._hand_over()

    async def drain(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Whoever still reads comes to the end."""
        if self._client._session is not None:
            self._client._session.close_from_client()
            self._client.on_end(self._client._session)
        self._client._stop_reading()

    async def wait_closed(self) -> None:
        """It is."""


def as_on_the_wire(headers: dict[str, Any]) -> Headers:
    """As they come out at the other end. Raises BadHeaderError."""
    sent: Headers = {}
    for key, value in headers.items():
        name = key.strip()
        if not name:
            continue
        if not _HEADER_KEY_RE.fullmatch(name):
            raise nats.errors.BadHeaderError(name)
        sent[str(getattr(name, "value", name))] = value.strip().translate(_HEADER_VALUE_NEWLINES).strip()
    return sent
