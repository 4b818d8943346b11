"""A small typed wrapper over nats-py: live messages, durable streams, key-value buckets and objects.

It reconnects without limit and says so in the log. Nothing here retries an operation by itself: an operation that
the bus did not confirm raises BusError, and its caller knows whether repeating it is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec
import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    RetentionPolicy,
    StreamConfig,
)
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from shared.errors import BusError, ConflictError, NoResponderError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.codec import decode, decode_record, encode, encode_record

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CONNECT_TIMEOUT_S = 15.0
OPERATION_TIMEOUT_S = 10.0
FETCH_BATCH = 256
FETCH_WAIT_S = 5.0
WRONG_LAST_SEQUENCE = 10071  # JetStream: compare-and-set lost, or the key exists
NO_SUCH_MESSAGE = (10037, 10043, 10057)  # JetStream: the sequence is absent, or was deleted before
DELETE_API = "$JS.API.STREAM.MSG.DELETE"
SUBJECT_IS_TAKEN = 10077  # JetStream: the stream keeps one message per subject and has it

_NO_OBJECT = (
    nats.js.errors.ObjectNotFoundError,
    nats.js.errors.ObjectDeletedError,
    nats.js.errors.NotFoundError,
)
_FAILURES = (nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One key's value; ``value`` is None where the key was deleted. ``revision`` is for ``Bucket.update``."""

    key: str
    value: T | None
    revision: int


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """One message of a durable stream. ``num_pending``: how many more the reader has not seen yet."""

    message: T
    subject: str
    sequence: int
    num_pending: int


class Bucket(Generic[T]):
    """A KV bucket whose values are records of one type."""

    def __init__(self, bus: Bus, kv: KeyValue, record_type: type[T]) -> None:
        self._bus = bus
        self._kv = kv
        self._type = record_type

    async def get(self, key: str) -> Entry[T]:
        """Raises NotFoundOnBusError."""
        try:
            entry = await self._kv.get(key)
        except (nats.js.errors.KeyNotFoundError, nats.js.errors.KeyDeletedError) as error:
            raise NotFoundOnBusError(key) from error
        except _FAILURES as error:
            raise BusError(f"get {key}: {error!r}") from error
        return Entry(key, decode_record(entry.value or b"", self._type), entry.revision or 0)

    async def create(self, key: str, value: T) -> int:
        """The new revision. Raises ConflictError where the key exists."""
        return await self._write(key, self._kv.create(key, encode_record(value)))

    async def put(self, key: str, value: T) -> int:
        """The new revision; whatever was there is replaced."""
        return await self._write(key, self._kv.put(key, encode_record(value)))

    async def update(self, key: str, value: T, revision: int) -> int:
        """The new revision. Raises ConflictError where another writer came first."""
        return await self._write(key, self._kv.update(key, encode_record(value), last=revision))

    async def edit(self, key: str, change: Callable[[T], T]) -> T:
        """Read, change, write, again until no other writer came between. Raises NotFoundOnBusError."""
        while True:
            entry = await self.get(key)
            assert entry.value is not None
            changed = change(entry.value)
            if changed == entry.value:
                return changed
            with contextlib.suppress(ConflictError):
                await self.update(key, changed, entry.revision)
                return changed

    async def delete(self, key: str) -> None:
        """Deleting an absent key is no error."""
        try:
            await self._kv.purge(key)
        except _FAILURES as error:
            raise BusError(f"delete {key}: {error!r}") from error

    async def entries(self) -> list[Entry[T]]:
        """All present entries, in the order of their revisions."""
        found = []
        try:
            watcher = await self._kv.watchall(ignore_deletes=True)
            try:
                async for entry in watcher:
                    if entry is None:
                        break
                    found.append(Entry(entry.key, decode_record(entry.value or b"", self._type), entry.revision or 0))
            finally:
                await watcher.stop()
        except _FAILURES as error:
            raise BusError(f"entries: {error!r}") from error
        return found

    async def watch(self) -> AsyncIterator[Entry[T] | None]:
        """Every present entry, then one None, then every change as it comes; after a reconnect all over again
        (with its None), since changes may have been missed."""
        while True:
            generation = self._bus.reconnects
            try:
                watcher = await self._kv.watchall()
            except _FAILURES as error:
                logger.warning("watch failed, trying again", extra={"error": repr(error)})
                await self._bus.wait_reconnected(generation, timeout_s=1.0)
                continue
            try:
                async for entry in self._updates(watcher, generation):
                    yield entry
            finally:
                with contextlib.suppress(*_FAILURES):
                    await watcher.stop()

    async def _updates(self, watcher: KeyValue.KeyWatcher, generation: int) -> AsyncIterator[Entry[T] | None]:
        while self._bus.reconnects == generation:
            try:
                entry = await watcher.updates(timeout=1.0)
            except (TimeoutError, nats.errors.TimeoutError):
                continue
            if entry is None:
                yield None
            elif entry.operation in ("DEL", "PURGE"):
                yield Entry(entry.key, None, entry.revision or 0)
            else:
                yield Entry(entry.key, decode_record(entry.value or b"", self._type), entry.revision or 0)

    async def _write(self, key: str, writing: Awaitable[int]) -> int:
        try:
            return await writing
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise ConflictError(key) from error
        except nats.js.errors.APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise ConflictError(key) from error
            raise BusError(f"write {key}: {error!r}") from error
        except _FAILURES as error:
            raise BusError(f"write {key}: {error!r}") from error


class Objects:
    """The object bucket: file contents of any size, in chunks."""

    def __init__(self, bus: Bus, store: ObjectStore, js: JetStreamContext) -> None:
        self._bus = bus
        self._store = store
        self._js = js

    async def put(self, name: str, data: BinaryIO | bytes) -> int:
        """Store the bytes under the name, replacing what was there; returns their number."""
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        try:
            info = await self._store.put(name, source)
        except _FAILURES as error:
            raise BusError(f"put object {name}: {error!r}") from error
        return info.size or 0

    async def get_into(self, name: str, sink: BinaryIO) -> int:
        """Write the object into an open binary file; returns its size. Raises NotFoundOnBusError."""
        total = 0
        async for chunk in self.chunks(name):
            await asyncio.to_thread(sink.write, chunk)
            total += len(chunk)
        return total

    async def chunks(self, name: str) -> AsyncIterator[bytes]:
        """The object's bytes, a chunk at a time. Raises NotFoundOnBusError, and BusError where chunks are missing."""
        try:
            info = await self._store.get_info(name)
        except _NO_OBJECT as error:
            raise NotFoundOnBusError(name) from error
        except _FAILURES as error:
            raise BusError(f"get object {name}: {error!r}") from error
        size, seen = info.size or 0, 0
        if size == 0:
            return
        stream = f"OBJ_{subjects.OBJECTS_BUCKET}"
        subject = f"$O.{subjects.OBJECTS_BUCKET}.C.{info.nuid}"
        async for sequence_data in self._bus.read_raw(stream, subject):
            seen += len(sequence_data.data)
            yield sequence_data.data
        if seen != size:
            raise BusError(f"object {name} has {seen} of {size} bytes")

    async def delete(self, name: str) -> None:
        """Deleting an absent object is no error."""
        try:
            await self._store.delete(name)
        except _NO_OBJECT:
            return
        except _FAILURES as error:
            raise BusError(f"delete object {name}: {error!r}") from error


class Subscription:
    """A live subscription; ``stop`` ends it."""

    def __init__(self, subscription: NatsSubscription) -> None:
        self._subscription = subscription

    async def stop(self) -> None:
        """No handler call starts after this."""
        with contextlib.suppress(*_FAILURES):
            await self._subscription.unsubscribe()


class Bus:
    """One connection of one process. Make it with ``Bus.connect``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js = client.jetstream(timeout=OPERATION_TIMEOUT_S)
        self._reconnected = asyncio.Event()
        self.reconnects = 0

    @classmethod
    async def connect(cls, url: str, name: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Bus:
        """Connect, trying for ``timeout_s``; from then on reconnect without limit. Raises BusError."""
        client = Client()
        bus = cls(client)

        async def on_disconnect() -> None:
            if not client.is_closed and not client.is_draining:
                logger.warning("bus connection lost, reconnecting", extra={"url": url})

        async def on_reconnect() -> None:
            bus.reconnects += 1
            bus._reconnected.set()
            bus._reconnected = asyncio.Event()
            logger.warning("bus connection restored", extra={"url": url})

        async def on_error(error: Exception) -> None:
            logger.debug("bus error", extra={"error": repr(error)})

        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):  # nats-py tries without end by itself
                    await client.connect(
                        url,
                        name=name,
                        allow_reconnect=True,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=0.2,
                        connect_timeout=2,
                        ping_interval=20,
                        pending_size=64 * 1024 * 1024,
                        disconnected_cb=on_disconnect,
                        reconnected_cb=on_reconnect,
                        error_cb=on_error,
                    )
                return bus
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise BusError(f"no NATS server answers at {url} ({error!r}); start one or check --nats") from error
                await asyncio.sleep(0.2)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    async def wait_reconnected(self, generation: int, timeout_s: float) -> None:
        """Return when the connection was restored after ``reconnects`` read ``generation``, or after the timeout."""
        if self.reconnects != generation:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._reconnected.wait(), timeout_s)

    async def close(self) -> None:
        """Let handlers finish, flush what was published, close."""
        if self._client.is_closed:
            return
        try:
            await asyncio.wait_for(self._client.drain(), 5.0)
        except _FAILURES:
            await self._client.close()

    # Live messages

    async def publish(self, subject: str, message: object) -> None:
        """At most once. While the bus is away, messages wait in a bounded buffer; beyond it BusError is raised."""
        try:
            await self._client.publish(subject, encode(message))
        except _FAILURES as error:
            raise BusError(f"publish {subject}: {error!r}") from error

    async def subscribe(
        self, subject: str, message_type: type[T] | Any, handler: Callable[[T], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """Call ``handler`` for each message, one after the other in the order of arrival."""

        async def on_message(msg: Msg) -> None:
            try:
                message = decode(msg.data, message_type)
            except msgspec.DecodeError as error:
                logger.warning("dropped a message that does not parse", extra=_why(msg, error))
                return
            await handler(message)

        return Subscription(await self._client.subscribe(subject, queue=queue, cb=on_message))

    async def serve(
        self, subject: str, request_type: type[T] | Any, handler: Callable[[T], Awaitable[object]], queue: str = ""
    ) -> Subscription:
        """Answer each request with what ``handler`` returns."""

        async def on_message(msg: Msg) -> None:
            try:
                request = decode(msg.data, request_type)
            except msgspec.DecodeError as error:
                logger.warning("dropped a request that does not parse", extra=_why(msg, error))
                return
            reply = encode(await handler(request))
            with contextlib.suppress(*_FAILURES):
                await self._client.publish(msg.reply, reply)

        return Subscription(await self._client.subscribe(subject, queue=queue, cb=on_message))

    async def request(self, subject: str, message: object, reply_type: type[R], timeout_s: float = 5.0) -> R:
        """Raises NoResponderError where nobody answers in time."""
        try:
            msg = await self._client.request(subject, encode(message), timeout=timeout_s)
        except (TimeoutError, nats.errors.NoRespondersError, nats.errors.TimeoutError) as error:
            raise NoResponderError(subject) from error
        except _FAILURES as error:
            raise BusError(f"request {subject}: {error!r}") from error
        return decode(msg.data, reply_type)

    async def gather(self, subject: str, message: object, reply_type: type[R], wait_s: float) -> list[R]:
        """Ask everyone; the replies that come within ``wait_s``."""
        replies: list[R] = []
        inbox = self._client.new_inbox()

        async def on_reply(msg: Msg) -> None:
            with contextlib.suppress(msgspec.DecodeError):
                replies.append(decode(msg.data, reply_type))

        subscription = await self._client.subscribe(inbox, cb=on_reply)
        try:
            await self._client.publish(subject, encode(message), reply=inbox)
            await asyncio.sleep(wait_s)
        finally:
            await subscription.unsubscribe()
        return replies

    async def flush(self) -> None:
        """Return when the server has everything that was published. Raises BusError."""
        try:
            await self._client.flush(timeout=int(OPERATION_TIMEOUT_S))
        except _FAILURES as error:
            raise BusError(f"flush: {error!r}") from error

    # Durable streams

    async def ensure_streams(self) -> None:
        """Create the streams where they are absent."""
        for name, subject in (
            (subjects.REQUESTS_STREAM, subjects.ALL_REQUESTS),
            (subjects.RESULTS_STREAM, subjects.ALL_RESULTS),
        ):
            config = StreamConfig(
                name=name,
                subjects=[subject],
                retention=RetentionPolicy.LIMITS,
                discard=DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_msgs_per_subject=1,
                allow_direct=True,
            )
            try:
                await self._js.add_stream(config)
            except nats.js.errors.BadRequestError as error:
                if error.err_code != 10058:  # the stream exists with another configuration
                    raise BusError(f"stream {name}: {error!r}") from error
            except _FAILURES as error:
                raise BusError(f"stream {name}: {error!r}") from error

    async def store(self, subject: str, message: object) -> bool:
        """Store durably; True where this call stored it, False where the subject had its message already.
        Raises BusError where it is not known to be stored; storing again is safe."""
        try:
            await self._js.publish(subject, encode(message))
        except nats.js.errors.APIError as error:
            if error.err_code == SUBJECT_IS_TAKEN:
                return False
            raise BusError(f"store {subject}: {error!r}") from error
        except _FAILURES as error:
            raise BusError(f"store {subject}: {error!r}") from error
        return True

    async def store_many(self, messages: list[tuple[str, object]]) -> None:
        """Store several (subject, message) pairs durably, pipelined; those already there count as stored.
        Raises BusError where one is not known to be stored; storing all again is safe."""
        storing = (self.store(subject, message) for subject, message in messages)
        results = await asyncio.gather(*storing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def read(self, stream: str, subject: str, message_type: type[T]) -> AsyncIterator[Stored[T]]:
        """Every stored message whose subject matches, oldest first; ends when all were seen."""
        async for raw in self.read_raw(stream, subject):
            yield Stored(decode(raw.data, message_type), raw.subject, raw.sequence, raw.num_pending)

    async def follow(self, stream: str, subject: str, message_type: type[T]) -> AsyncIterator[Stored[T] | None]:
        """Every stored message, one None when those present were seen, then each new one as it comes. Never ends."""
        async for raw in self._consume(stream, subject):
            yield (
                None
                if raw is None
                else Stored(decode(raw.data, message_type), raw.subject, raw.sequence, raw.num_pending)
            )

    async def read_raw(self, stream: str, subject: str) -> AsyncIterator[_Raw]:
        """As ``read``, undecoded."""
        async for raw in self._consume(stream, subject):
            if raw is None:
                return
            yield raw

    async def delete_stored(self, stream: str, sequence: int) -> None:
        """Remove one message; removing an absent one is no error. Its bytes on the disk are not overwritten: that, as
        nats-py's own call always asks for it, takes the server forty times as long."""
        request = encode_record({"seq": sequence, "no_erase": True})
        try:
            msg = await self._client.request(f"{DELETE_API}.{stream}", request, timeout=OPERATION_TIMEOUT_S)
        except _FAILURES as error:
            raise BusError(f"delete {sequence} of {stream}: {error!r}") from error
        refusal = decode_record(msg.data, _ApiReply).error
        if refusal is not None and refusal.err_code not in NO_SUCH_MESSAGE:
            raise BusError(f"delete {sequence} of {stream}: {refusal.description}")

    async def purge(self, stream: str, subject: str) -> None:
        """Remove every stored message whose subject matches."""
        try:
            await self._js.purge_stream(stream, subject=subject)
        except _FAILURES as error:
            raise BusError(f"purge {subject}: {error!r}") from error

    async def _consume(self, stream: str, subject: str) -> AsyncIterator[_Raw | None]:
        """One None each time the reader has caught up for the first time; recreates a consumer that was lost."""
        last, caught_up = 0, False
        while True:
            try:
                consumer = await self._js.pull_subscribe(
                    subject,
                    stream=stream,
                    config=ConsumerConfig(
                        ack_policy=AckPolicy.NONE,
                        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                        opt_start_seq=last + 1,
                        inactive_threshold=30.0,
                        mem_storage=True,
                    ),
                )
                pending = (await consumer.consumer_info()).num_pending or 0
            except _FAILURES as error:
                if not caught_up and last == 0 and not self._client.is_reconnecting:
                    raise BusError(f"read {stream}: {error!r}") from error
                await self.wait_reconnected(self.reconnects, timeout_s=1.0)
                continue
            try:
                if pending == 0 and not caught_up:
                    caught_up = True
                    yield None
                generation = self.reconnects
                while generation == self.reconnects:
                    try:
                        messages = await consumer.fetch(FETCH_BATCH, timeout=FETCH_WAIT_S)
                    except (TimeoutError, nats.errors.TimeoutError):
                        # what was pending may have been deleted before it was delivered
                        if not caught_up and not (await consumer.consumer_info()).num_pending:
                            caught_up = True
                            yield None
                        continue
                    for msg in messages:
                        meta = msg.metadata
                        last = meta.sequence.stream
                        yield _Raw(msg.data, msg.subject, last, meta.num_pending)
                        if meta.num_pending == 0 and not caught_up:
                            caught_up = True
                            yield None
            except _FAILURES as error:
                logger.warning("stream reader lost its consumer", extra={"stream": stream, "error": repr(error)})
                await self.wait_reconnected(self.reconnects, timeout_s=0.5)
            finally:
                with contextlib.suppress(*_FAILURES):
                    await consumer.unsubscribe()

    # Buckets

    async def bucket(self, name: str, record_type: type[T]) -> Bucket[T]:
        """The KV bucket, created where absent."""
        try:
            try:
                kv = await self._js.key_value(name)
            except nats.js.errors.BucketNotFoundError:
                kv = await self._js.create_key_value(KeyValueConfig(bucket=name))
        except _FAILURES as error:
            raise BusError(f"bucket {name}: {error!r}") from error
        return Bucket(self, kv, record_type)

    async def objects(self) -> Objects:
        """The object bucket, created where absent."""
        name = subjects.OBJECTS_BUCKET
        try:
            try:
                store = await self._js.object_store(name)
            except (nats.js.errors.BucketNotFoundError, nats.js.errors.NotFoundError):
                store = await self._js.create_object_store(name, config=ObjectStoreConfig(bucket=name))
        except _FAILURES as error:
            raise BusError(f"object bucket {name}: {error!r}") from error
        return Objects(self, store, self._js)


class _ApiError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _ApiReply(msgspec.Struct):
    error: _ApiError | None = None


@dataclass(frozen=True, slots=True)
class _Raw:
    data: bytes
    subject: str
    sequence: int
    num_pending: int


def _why(msg: Msg, error: Exception) -> dict[str, str]:
    return {"subject": msg.subject, "why": str(error)}
