"""Asking a consumer of a stream for messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Self

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerInfo

from shared.bus.connection import FAILURES, FencedClient
from shared.protocol.codec import encode_record

FETCH_BYTES = 16 * 1024**2  # in memory at once, where no message is larger
FETCH_WAIT_S = 25.0  # at the server, for messages that come
KEPT_S = 30.0  # that it keeps a consumer without requests: longer than they wait
BEAT_S = 5.0  # between its words meanwhile
LATE_S = 1.0  # that they may be
STILL_WAITS, WAITED_IN_VAIN = "100", "408"  # what it says then, by NATS's ADR-13 and ADR-37
COMPLETE, FORGOTTEN = "", "lost"  # what says nothing: the last that was asked for, and a connection that is lost
NEXT_API = "$JS.API.CONSUMER.MSG.NEXT"
DELETE_API = "$JS.API.CONSUMER.DELETE"

TellingReconnects = Callable[[Callable[[], None]], AbstractContextManager[None]]  # see ``Connection``


class Pulls:
    """One question at a time, all over one subscription. A word of the server that it still waits wakes nobody.
    nats-py's own fetch knows no bound in bytes."""

    def __init__(self, client: FencedClient, consumer: ConsumerInfo) -> None:
        self._client = client
        self._subject = f"{NEXT_API}.{consumer.stream_name}.{consumer.name}"
        self._max_bytes = max(FETCH_BYTES, 2 * client.max_payload)
        self._loop = asyncio.get_running_loop()
        self._inbox = client.new_inbox()
        self._subscription: Subscription
        self._num_asked = 0
        self._reply = ""  # where the question is answered
        self._num_wanted = 0
        self._messages: list[Msg] = []
        self._status: asyncio.Future[str] = self._loop.create_future()
        self._heard_s = 0.0
        self._timer: asyncio.Handle | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, client: FencedClient, consumer: ConsumerInfo, telling_reconnects: TellingReconnects
    ) -> AsyncIterator[Self]:
        """The consumer is removed after it, since a server has room for so many (nats-server 2.15: 1,000 of a stream),
        and keeps one for a while that nobody asks. Raises what nats-py does."""
        pulls = cls(client, consumer)
        pulls._subscription = await client.subscribe(f"{pulls._inbox}.*", cb=pulls._on_message)
        try:
            with telling_reconnects(lambda: pulls._end(FORGOTTEN)):
                yield pulls
        finally:
            with contextlib.suppress(*FAILURES):
                await pulls._subscription.unsubscribe()
                await client.publish(f"{DELETE_API}.{consumer.stream_name}.{consumer.name}")

    async def ask(self, num_pending: int) -> tuple[list[Msg], str]:
        """So many, or fewer where they are large; where none is pending, one if it comes in time; and the status by
        which the server has ended it, if it has, or FORGOTTEN. Raises TimeoutError of nats-py where the server has not
        said for a while that it waits; then nothing more is to be asked."""
        waits = {"expires": int(FETCH_WAIT_S * 1e9), "idle_heartbeat": int(BEAT_S * 1e9)}
        how = {"no_wait": True} if num_pending else waits
        self._num_asked += 1
        self._reply, self._num_wanted = f"{self._inbox}.{self._num_asked}", max(1, num_pending)
        self._messages, self._status, self._heard_s = [], self._loop.create_future(), self._loop.time()
        request = encode_record({"batch": self._num_wanted, "max_bytes": self._max_bytes} | how)
        await self._client.publish(self._subject, request, reply=self._reply)
        self._timer = self._loop.call_at(self._heard_s + BEAT_S + LATE_S, self._look)
        try:
            status = await self._status
        finally:
            self._timer.cancel()
        return self._messages, status

    async def _on_message(self, msg: Msg) -> None:
        self._heard_s = self._loop.time()
        if msg.reply:
            self._messages.append(msg)
            if len(self._messages) == self._num_wanted:
                self._end(COMPLETE)
        elif msg.subject == self._reply:  # what ended the question before may be said when that was answered
            status = (msg.headers or {}).get("Status", "")
            if status != STILL_WAITS:
                self._end(status)

    def _end(self, status: str) -> None:
        if not self._status.done():
            self._status.set_result(status)

    def _look(self) -> None:
        """Whether the server is silent. What has come here and was not looked at counts: this process was busy."""
        if self._subscription.pending_msgs:
            self._heard_s = self._loop.time()
        silent_s = self._heard_s + BEAT_S + LATE_S
        if self._loop.time() < silent_s:
            self._timer = self._loop.call_at(silent_s, self._look)
        elif not self._status.done():
            self._status.set_exception(nats.errors.TimeoutError())
