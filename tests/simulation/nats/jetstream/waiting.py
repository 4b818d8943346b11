"""The pull requests that wait at a consumer, served in turn."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.nats.jetstream.config import NS
from tests.simulation.nats.session import Headers

PENDING_MESSAGES = "Nats-Pending-Messages"
PENDING_BYTES = "Nats-Pending-Bytes"


def status(code: int, description: str, **headers: str) -> Headers:
    """Headers of a message that carries no data but says what happens."""
    return {"Status": str(code), "Description": description, **headers}


@dataclass(eq=False, slots=True)
class PullRequest:
    """``num_left``: messages that may still come; ``bytes_left``: None: any number. Times are the event loop's."""

    reply: str
    num_left: int
    bytes_left: int | None
    is_one_shot: bool  # ends as soon as nothing is left for it
    expires_s: float | None
    heartbeat_s: float | None
    beats_s: float  # when the next one is due
    num_delivered: int = 0

    @classmethod
    def parse(cls, data: bytes, reply: str, now_s: float) -> PullRequest:
        """A number, or JSON, or nothing for one message. Raises ValueError."""
        asked = json.loads(data) if data.strip() else {}
        if isinstance(asked, int):
            asked = {"batch": asked}
        if not isinstance(asked, dict):
            raise ValueError("neither a number nor an object")
        expires_ns, beat_ns = asked.get("expires") or 0, asked.get("idle_heartbeat") or 0
        return cls(
            reply=reply,
            num_left=max(1, asked.get("batch") or 0),
            bytes_left=asked.get("max_bytes") or None,
            is_one_shot=bool(asked.get("no_wait")),
            expires_s=now_s + expires_ns / NS if expires_ns else None,
            heartbeat_s=beat_ns / NS or None,
            beats_s=now_s + beat_ns / NS,
        )

    def end(self, code: int, description: str) -> Headers:
        left = {PENDING_MESSAGES: str(self.num_left), PENDING_BYTES: str(self.bytes_left or 0)}
        return status(code, description, **left)


class WaitingRequests:
    """``tell`` sends headers to a request's inbox; ``listens``: whether anybody does there."""

    def __init__(
        self,
        most: int,
        tell: Callable[[str, Headers], None],
        listens: Callable[[str], bool],
        beat: Callable[[], Headers],
    ) -> None:
        self._most = most
        self._tell = tell
        self._listens = listens
        self._beat = beat
        self._requests: deque[PullRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_full(self) -> bool:
        return len(self._requests) >= self._most

    def add(self, request: PullRequest) -> None:
        self._requests.append(request)

    def inboxes(self) -> list[str]:
        return [request.reply for request in self._requests]

    def clear(self) -> None:
        self._requests.clear()

    @property
    def num_wanted(self) -> int:
        return sum(request.num_left for request in self._requests)

    def take(self, num_bytes: int, now_s: float) -> PullRequest | None:
        """Whose turn it is to have a message of this size; it goes to the end of the line, if it wants more."""
        while self._requests:
            request = self._requests[0]
            if request.bytes_left is not None:
                if num_bytes > request.bytes_left:
                    self._tell(request.reply, request.end(409, "Message Size Exceeds MaxBytes"))
                    self._requests.popleft()
                    continue
                request.bytes_left -= num_bytes
                if not request.bytes_left:
                    request.num_left = 1
            if request.expires_s is not None and now_s >= request.expires_s:
                self._tell(request.reply, request.end(408, "Request Timeout"))
            elif self._listens(request.reply):
                request.num_delivered += 1
                request.num_left -= 1
                self._requests.rotate(-1)
                if not request.num_left:
                    self._requests.pop()
                return request
            self._requests.popleft()
        return None

    def tidy(self, is_at_end: bool, now_s: float) -> float | None:
        """End what has expired, what nobody listens for, and, where nothing is left to deliver, the one-shots that had
        something. Returns when to look again."""
        next_s: float | None = None
        ended: list[PullRequest] = []
        for request in self._requests:
            if not self._listens(request.reply):
                ended.append(request)
                continue
            if is_at_end and request.is_one_shot and (request.num_delivered or request.expires_s is None):
                self._tell(request.reply, status(404, "No Messages"))
                ended.append(request)
                continue
            if request.expires_s is not None and now_s >= request.expires_s:
                self._tell(request.reply, request.end(408, "Request Timeout"))
                ended.append(request)
                continue
            if request.heartbeat_s is not None:
                if now_s >= request.beats_s:
                    self._tell(request.reply, self._beat())
                    request.beats_s = now_s + request.heartbeat_s
                next_s = request.beats_s if next_s is None else min(next_s, request.beats_s)
            if request.expires_s is not None:
                next_s = request.expires_s if next_s is None else min(next_s, request.expires_s)
        for request in ended:
            self._requests.remove(request)
        return next_s
