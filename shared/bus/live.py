"""Live messages: at most once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from shared.bus.connection import FAILURES, OPERATION_TIMEOUT_S, Connection, failing_as
from shared.errors import BusError, NobodyListensError, NoResponderError, SlackwaterError
from shared.protocol.codec import decode, encode

logger = logging.getLogger(__name__)

ERROR_HEADER = "Nats-Service-Error"  # as NATS's own services say it
MOST_ERROR = 4096  # characters of it

T = TypeVar("T")
R = TypeVar("R")


class Subscription:
    """A live subscription; ``stop`` ends it."""

    def __init__(self, subscription: NatsSubscription, idle: asyncio.Event) -> None:
        """``idle``: set while no handler runs."""
        self._subscription = subscription
        self._idle = idle

    async def stop(self) -> None:
        """No handler call starts after this."""
        with contextlib.suppress(*FAILURES):
            await self._subscription.unsubscribe()

    async def caught_up(self) -> None:
        """Return when the messages that have arrived here by now are handled. A handler of another subscription waits
        so for what was published before its own message; two that wait for each other wait for ever."""
        while self._subscription.pending_msgs or not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # those behind it begin


class Listener(Subscription):
    """One of those of a ``Hearing``."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    async def stop(self) -> None:
        handlers = self._hearing.handlers
        if handlers.pop(self, None) is not None and not handlers:
            self._hearing.forget()
            await self._hearing.subscription.stop()

    async def caught_up(self) -> None:
        await self._hearing.subscription.caught_up()


class Hearing:
    """Of one subject, for all in this process who listen to it for messages of one type: the server sends each once,
    and it is decoded once."""

    subscription: Subscription

    def __init__(self, forget: Callable[[], object]) -> None:
        """``forget``: nobody joins any more."""
        self.forget = forget
        self.handlers: dict[Listener, Callable[[Any], Awaitable[None]]] = {}

    def join(self, handler: Callable[[Any], Awaitable[None]]) -> Listener:
        listener = Listener(self)
        self.handlers[listener] = handler
        return listener


class LiveMessages(Connection):
    """Publish and subscribe, request and reply."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hearings: dict[tuple[str, Any], Hearing] = {}  # by subject and type

    async def publish(self, subject: str, message: object) -> None:
        """At most once. While the bus is away, messages wait in a bounded buffer; beyond it BusError is raised."""
        with failing_as(f"publish {subject}"):
            await self._client.publish(subject, encode(message))

    async def publish_or_drop(self, subject: str, message: object) -> None:
        """``publish``, for messages that later ones make up for: one that cannot be sent is noted in the log."""
        try:
            await self.publish(subject, message)
        except BusError as error:
            logger.warning("message dropped", extra={"subject": subject, "why": str(error)})

    async def subscribe(
        self, subject: str, message_type: type[T] | Any, handler: Callable[[T], Awaitable[None]]
    ) -> Subscription:
        """Call ``handler`` for each message, one after the other in the order of arrival. An error that it raises is
        logged and counted, and ends that message alone, as does one that does not parse. All who listen here to the
        subject for messages of this type have one and the same, one after the other: a handler leaves it as it is, is
        soon done with it, and waits for no other's."""
        key = subject, message_type
        if (hearing := self._hearings.get(key)) is not None:
            return hearing.join(handler)
        hearing = Hearing(lambda: self._hearings.pop(key, None))
        listener = hearing.join(handler)  # the first message may come before the subscription is known here

        async def tell(msg: Msg, message: T) -> None:
            for each, handle in list(hearing.handlers.items()):
                if each in hearing.handlers:
                    await self._handle(msg, handle(message))

        hearing.subscription = await self._listen(subject, message_type, tell)
        self._hearings[key] = hearing
        return listener

    async def serve(
        self,
        subject: str,
        request_type: type[T] | Any,
        handler: Callable[[T], Awaitable[object]],
        queue: str = "",
        is_concurrent: bool = False,
    ) -> Subscription:
        """Answer each request with what ``handler`` returns, or with the error that it raises. ``is_concurrent``: a
        handler begins in the order of arrival, and does not wait for those before it, however many run."""

        async def answer(msg: Msg, request: T) -> None:
            reply = encode(await handler(request))
            with contextlib.suppress(*FAILURES):
                await self._client.publish(msg.reply, reply)

        if not is_concurrent:
            return await self._listen(subject, request_type, answer, queue)

        async def begin(msg: Msg, request: T) -> None:
            self._client.handle(self._handle(msg, answer(msg, request)))

        return await self._listen(subject, request_type, begin, queue)

    async def request(self, subject: str, message: object, reply_type: type[R], timeout_s: float = 5.0) -> R:
        """Raises NoResponderError where nobody answers in time, NobodyListensError where nobody could, and BusError
        where the answer is an error, or does not parse."""
        with failing_as(f"request {subject}"):
            try:
                msg = await self._client.request(subject, encode(message), timeout=timeout_s)
            except nats.errors.NoRespondersError as error:
                raise NobodyListensError(subject) from error
            except (TimeoutError, nats.errors.TimeoutError) as error:
                raise NoResponderError(subject) from error
        why = (msg.headers or {}).get(ERROR_HEADER)
        try:
            if why is None:
                return decode(msg.data, reply_type)
        except msgspec.DecodeError as error:
            why = str(error)
        raise BusError(f"request {subject}: {why}")

    async def gather(self, subject: str, message: object, reply_type: type[R], wait_s: float) -> list[R]:
        """Ask everyone; the replies that come within ``wait_s``. Raises BusError."""
        replies: list[R] = []
        inbox = self._client.new_inbox()

        async def on_reply(msg: Msg) -> None:
            with contextlib.suppress(msgspec.DecodeError):
                replies.append(decode(msg.data, reply_type))

        with failing_as(f"gather {subject}"):
            subscription = await self._client.subscribe(inbox, cb=on_reply)
            try:
                await self._client.publish(subject, encode(message), reply=inbox)
                await asyncio.sleep(wait_s)
            finally:
                await subscription.unsubscribe()
        return replies

    async def flush(self) -> None:
        """Return when the server has everything that was published. Raises BusError."""
        with failing_as("flush"):
            await self._client.flush(timeout=int(OPERATION_TIMEOUT_S))

    async def _listen(
        self, subject: str, message_type: type[T] | Any, handler: Callable[[Msg, T], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        idle = asyncio.Event()
        idle.set()

        async def on_message(msg: Msg) -> None:
            idle.clear()
            try:
                await handler(msg, decode(msg.data, message_type))
            except Exception as error:  # those behind it are handled
                await self._failed(msg, error)
            finally:
                idle.set()

        with failing_as(f"subscribe to {subject}"):
            return Subscription(await self._client.subscribe(subject, queue=queue, cb=on_message), idle)

    async def _handle(self, msg: Msg, handling: Awaitable[None]) -> None:
        """Its error ends this message alone."""
        try:
            await handling
        except Exception as error:
            await self._failed(msg, error)

    async def _failed(self, msg: Msg, error: Exception) -> None:
        if isinstance(error, msgspec.DecodeError | SlackwaterError):
            logger.warning("a message was refused", extra={"subject": msg.subject, "why": str(error)})
        else:
            logger.error("a message was not handled", exc_info=error, extra={"subject": msg.subject})
        await self._refuse(msg, error)

    async def _refuse(self, msg: Msg, error: Exception) -> None:
        """Count it, and tell whoever waits for an answer."""
        self.num_failed += 1
        if msg.reply:
            with contextlib.suppress(*FAILURES):
                await self._client.publish(msg.reply, headers={ERROR_HEADER: repr(error)[:MOST_ERROR]})
