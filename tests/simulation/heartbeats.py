"""Heartbeats of a run, each decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from shared.protocol.codec import decode
from shared.protocol.executors import Heartbeat

MOST_KNOWN = 256


class Heartbeats:
    """Everybody hears every heartbeat, and an idle executor's is the same for hours: what was decoded of these bytes
    before is heard again. So all share it, and whoever hears it has to leave it as it is, which is checked."""

    def __init__(self) -> None:
        self._known: dict[bytes, Heartbeat] = {}

    def decode(self, data: bytes, message_type: Any) -> Any:
        """As the codec's. Raises what that does, and AssertionError as ``forget``."""
        if message_type is not Heartbeat:
            return decode(data, message_type)
        known = self._known.get(data)
        if known is None:
            if len(self._known) == MOST_KNOWN:
                self.forget()
            known = self._known[data] = decode(data, Heartbeat)
        return known

    def forget(self) -> None:
        """Those that are known. Raises AssertionError where somebody has changed one."""
        known, self._known = self._known, {}
        for data, heartbeat in known.items():
            assert heartbeat == decode(data, Heartbeat), f"a heartbeat was changed by who heard it: {heartbeat}"


@contextmanager
def heartbeats_decoded_once() -> Iterator[None]:
    """By all of this interpreter, for as long as a run lasts."""
    heartbeats = Heartbeats()
    with patch("shared.bus.live.decode", heartbeats.decode):
        yield
    heartbeats.forget()
