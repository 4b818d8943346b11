"""What a message's headers ask of the stream that is to take it."""

from __future__ import annotations

import re
from collections import deque

from tests.simulation.nats.jetstream import errors
from tests.simulation.nats.jetstream.config import NS, Config
from tests.simulation.nats.jetstream.store import Store
from tests.simulation.nats.session import Headers

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_ID = "Nats-Expected-Last-Msg-Id"
EXPECTED_LAST_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
ROLLUP = "Nats-Rollup"
TTL = "Nats-TTL"

_UNITS_NS = {"ns": 1, "us": 1000, "ms": 1_000_000, "s": NS, "m": 60 * NS, "h": 3600 * NS}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")


class SentIds:
    """Message ids of the last while, and where they are stored."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.last = ""  # id
        self._sequences: dict[str, int] = {}
        self._since: deque[tuple[int, str]] = deque()

    def find(self, message_id: str | None, now_ns: int) -> int:
        """0 where it is not known."""
        while self._since and self._since[0][0] + self.window_ns <= now_ns:
            self._sequences.pop(self._since.popleft()[1], None)
        return self._sequences.get(message_id, 0) if message_id else 0

    def add(self, message_id: str | None, sequence: int, now_ns: int) -> None:
        self.last = message_id or ""
        if message_id:
            self._sequences[message_id] = sequence
            self._since.append((now_ns, message_id))


def check_stream_and_ttl(headers: Headers, config: Config) -> None:
    """What is looked at before all else. Raises ApiError."""
    if headers.get(EXPECTED_STREAM, config["name"]) != config["name"]:
        raise errors.STREAM_DOES_NOT_MATCH
    if not config["allow_msg_ttl"] and _lifetime_ns(headers.get(TTL, "")):
        raise errors.TTL_DISABLED


def check(headers: Headers, subject: str, store: Store, config: Config, last_id: str) -> None:
    """Raises ApiError for the first that does not hold."""
    if EXPECTED_LAST_OF_SUBJECT in headers:
        last = store.last_of(headers.get(EXPECTED_SUBJECT, subject))
        if _number(headers[EXPECTED_LAST_OF_SUBJECT]) != last:
            raise errors.wrong_last_sequence(last)
    if EXPECTED_LAST in headers and _number(headers[EXPECTED_LAST]) != store.last:
        raise errors.wrong_last_sequence(store.last)
    if EXPECTED_LAST_ID in headers and headers[EXPECTED_LAST_ID] != last_id:
        raise errors.wrong_last_message_id(last_id)
    rollup = headers.get(ROLLUP)
    if rollup:
        if not config["allow_rollup_hdrs"] or config["deny_purge"]:
            raise errors.rollup_failed("rollup not permitted")
        if rollup not in ("sub", "all"):
            raise errors.rollup_failed(f'rollup value invalid: "{rollup}"')


def ttl_ns(headers: Headers, config: Config) -> int:
    """How long the message is kept; 0: without a limit of its own. Raises ApiError."""
    text = headers.get(TTL)
    if not text:
        return 0
    if not config["allow_msg_ttl"]:
        raise errors.TTL_DISABLED
    if text == "never":
        return 0
    lifetime_ns = _lifetime_ns(text)
    if lifetime_ns < NS:
        raise errors.TTL_INVALID
    return lifetime_ns


def _lifetime_ns(text: str) -> int:
    """0 where it is none."""
    if text.isdigit():
        return int(text) * NS
    if _DURATION.sub("", text):
        return 0
    return sum(int(float(number) * _UNITS_NS[unit]) for number, unit in _DURATION.findall(text))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
