"""Durable streams: messages that are kept, one per subject, until they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StreamConfig,
    StreamInfo,
)

from shared.bus.connection import FAILURES, OPERATION_TIMEOUT_S, Connection, failing_as
from shared.bus.pulls import FORGOTTEN, KEPT_S, WAITED_IN_VAIN, Pulls
from shared.cancellation import check_cancelled
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.codec import decode, decode_record, encode, encode_record

logger = logging.getLogger(__name__)

T = TypeVar("T")

FETCH_BATCH = 256
MOST_TRIES = 20  # to have a consumer where it does not lag: of three servers one is right
SAME_TIME_S = 1e-3  # times of storing are told in different units
MOST_REFUSALS = 10  # of a consumer, a second apart, for want of room
OVERLAP = 10  # of a page of subjects the 10th part is in the next one, too
UNREADABLE_S = 0.2  # until the server is asked again for what it has and does not give
DELETE_API = "$JS.API.STREAM.MSG.DELETE"
INFO_API = "$JS.API.STREAM.INFO"

# JetStream's error codes.
NO_SUCH_MESSAGE = (10037, 10043, 10057)  # the sequence is absent, or was deleted before
NO_SUCH_STREAM = (10059,)
STORE_FAILED = 10077  # for any reason, which the description says
SUBJECT_IS_TAKEN = "per subject exceeded"  # in that: the stream keeps one message per subject and has it
STREAM_DIFFERS = 10058  # the stream exists with another configuration
NO_MORE_CONSUMERS = 10026  # for another consumer of the stream; as a rule there is soon: whoever has read leaves


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """One message of a durable stream."""

    message: T
    subject: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Raw:
    """As ``Stored``, undecoded. ``stored_s``: unix time, on the server's clock."""

    data: bytes
    subject: str
    sequence: int
    headers: Mapping[str, str]
    stored_s: float


@dataclass(frozen=True, slots=True)
class StreamSize:
    """What a stream holds."""

    messages: int
    bytes: int
    consumers: int = 0
    copies: int = 1


class Streams(Connection):
    """Store, read, follow, delete."""

    async def ensure_streams(self) -> None:
        """Create the streams where they are absent."""
        await self.through_reconnects(self._ensure_streams)

    async def _ensure_streams(self) -> None:
        for name, subject in (
            (subjects.REQUESTS_STREAM, subjects.ALL_REQUESTS),
            (subjects.RESULTS_STREAM, subjects.RESULTS_AND_FAILURES),
        ):
            config = StreamConfig(
                name=name,
                subjects=[subject],
                retention=RetentionPolicy.LIMITS,
                discard=DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_msgs_per_subject=1,
                num_replicas=self.replicas,
                allow_direct=True,
            )
            with failing_as(f"stream {name}"):
                try:
                    await self._js.add_stream(config)
                except nats.js.errors.BadRequestError as error:
                    if error.err_code != STREAM_DIFFERS:
                        raise

    async def raise_replicas(self, streams: Iterable[str]) -> None:
        """Those of these streams that have fewer copies than they would be made with now get more; none gets fewer,
        and one that is not there is none's business. Raises BusError."""
        for name in streams:
            with failing_as(f"replicas of {name}"), contextlib.suppress(nats.js.errors.NotFoundError):
                config = (await self._js.stream_info(name)).config
                if (config.num_replicas or 1) < self.replicas:
                    await self._js.update_stream(config.evolve(num_replicas=self.replicas))
                    logger.info("a stream gets more copies", extra={"stream": name, "replicas": self.replicas})

    async def store(self, subject: str, message: object) -> bool:
        """Store durably; True where this call stored it, False where the subject had its message already.
        Raises BusError where it is not known to be stored; storing again is safe."""
        with failing_as(f"store {subject}"):
            try:
                await self._js.publish(subject, encode(message))
            except nats.js.errors.APIError as error:
                if error.err_code == STORE_FAILED and SUBJECT_IS_TAKEN in (error.description or ""):
                    return False
                raise
        return True

    async def store_raw(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store bytes durably; the sequence. Raises BusError where they perhaps are not, or the headers forbid it."""
        with failing_as(f"store {subject}"):
            return int((await self._js.publish(subject, data, headers=headers)).seq)

    async def store_many(self, messages: Sequence[tuple[str, object]]) -> None:
        """Store several (subject, message) pairs durably, pipelined; those already there count as stored.
        Raises BusError where one is not known to be stored; storing all again is safe."""
        storing = (self.store(subject, message) for subject, message in messages)
        results = await asyncio.gather(*storing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def read(
        self,
        stream: str,
        subject: str,
        message_type: type[T],
        instead: Callable[[str], T] | None = None,
        fetch: int = FETCH_BATCH,
    ) -> AsyncGenerator[Stored[T], None]:
        """All stored messages of matching subjects, oldest first; up to ``fetch`` in memory at once. ``instead``: what,
        by its subject, stands for one that does not parse (another version's); without it such a one is passed over."""
        async with contextlib.aclosing(self.read_raw(stream, subject, fetch)) as raws:
            async for raw in raws:
                if (stored := _stored(raw, message_type, instead)) is not None:
                    yield stored

    async def follow(
        self, stream: str, subject: str, message_type: type[T], instead: Callable[[str], T] | None = None
    ) -> AsyncIterator[Stored[T] | None]:
        """Every stored message, one None when those present were seen, then each new one as it comes. Never ends.
        ``instead`` as of ``read``."""
        async for raw in self.follow_raw(stream, subject):
            stored = None if raw is None else _stored(raw, message_type, instead)
            if raw is None or stored is not None:
                yield stored

    async def read_raw(
        self, stream: str, subject: str, fetch: int = FETCH_BATCH, start: int = 1, newest_only: bool = False
    ) -> AsyncGenerator[Raw, None]:
        """As ``read``, undecoded. ``newest_only``: of each matching subject, without its data; where the connection is
        lost meanwhile, some come again."""
        async with contextlib.aclosing(self.follow_raw(stream, subject, fetch, start, newest_only)) as raws:
            async for raw in raws:
                if raw is None:
                    return
                yield raw

    async def newest(self, stream: str, subject: str, read: Callable[[], Awaitable[T | None]]) -> T | None:
        """What ``read`` returns of the subject's newest message; None where there is none. Raises BusError where the
        server cannot read it, as when it may open no more files: nats-server (2.15) says then that it is not found."""
        for _ in range(2):  # it may have come in between
            try:
                return await read()
            except nats.js.errors.NotFoundError:
                if subject not in await self.subjects(stream, subject):
                    return None
        raise BusError(f"{subject} is there, and the bus cannot read it")

    async def delete_stored(self, stream: str, sequence: int) -> None:
        """Remove one message; removing an absent one is no error. Its bytes on the disk are not overwritten: that, as
        nats-py's own call always asks for it, takes the server forty times as long."""
        await self._ask(f"{DELETE_API}.{stream}", {"seq": sequence, "no_erase": True}, NO_SUCH_MESSAGE)

    async def size(self, stream: str) -> StreamSize:
        """Nothing where there is no such stream. Raises BusError."""
        with failing_as(f"size of {stream}"):
            try:
                return _size(await self._js.stream_info(stream))
            except nats.js.errors.NotFoundError:
                return StreamSize(0, 0)

    async def sizes(self) -> dict[str, StreamSize]:
        """Of all streams, buckets among them, by their names on the server. Raises BusError."""
        with failing_as("sizes of streams"):
            infos = await self._js.streams_info()
        return {info.config.name or "": _size(info) for info in infos}

    async def subjects(self, stream: str, subject: str) -> set[str]:
        """Every matching subject that holds a message now; none where there is no such stream. Raises BusError."""
        return {each async for page in self.subject_pages(stream, subject) for each in page}

    async def subject_pages(self, stream: str, subject: str) -> AsyncGenerator[Collection[str], None]:
        """As ``subjects``, up to 100,000 at a time; some may come twice."""
        offset = 0
        while True:
            request = {"subjects_filter": subject, "offset": offset}
            reply = await self._ask(f"{INFO_API}.{stream}", request, NO_SUCH_STREAM)
            page = reply.state.subjects or {}
            yield page
            offset += len(page)
            if offset >= reply.total or not page:
                return
            offset -= len(page) // OVERLAP  # of those before it some may go meanwhile

    async def purge(self, stream: str, subject: str, last: int | None = None) -> None:
        """Remove every stored message whose subject matches, up to the sequence ``last`` where it is given."""
        with failing_as(f"purge {subject}"):
            await self._js.purge_stream(stream, None if last is None else last + 1, subject)

    async def _ask(self, api: str, request: dict[str, object], passing: Collection[int]) -> _ApiReply:
        """What JetStream answers. Raises BusError, but not for the ``passing`` error codes."""
        with failing_as(f"{api} {request}"):
            msg = await self._client.request(api, encode_record(request), timeout=OPERATION_TIMEOUT_S)
        reply = decode_record(msg.data, _ApiReply)
        if reply.error is not None and reply.error.err_code not in passing:
            raise BusError(f"{api} {request}: {reply.error.description}")
        return reply

    async def follow_raw(
        self,
        stream: str,
        subject: str,
        fetch: int = FETCH_BATCH,
        start: int = 1,
        newest_only: bool = False,
        goes_on: bool = True,
    ) -> AsyncGenerator[Raw | None, None]:
        """As ``follow`` and ``read_raw``. Where its consumer is lost, it goes on behind what it had with another one,
        or, unless it ``goes_on``, ends."""
        last, caught_up, num_tries, num_refused = start - 1, False, 0, 0
        newest: Raw | None = None  # of those read
        policy = DeliverPolicy.LAST_PER_SUBJECT if newest_only else DeliverPolicy.BY_START_SEQUENCE
        while True:
            check_cancelled()
            generation = self.reconnects
            config = ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_policy=policy,
                opt_start_seq=None if newest_only else last + 1,
                filter_subject=subject,
                headers_only=newest_only,
                inactive_threshold=KEPT_S,
                mem_storage=True,
            )
            try:
                if newest is not None and await self._has_lost(stream, newest):
                    logger.warning("the store has lost messages, reading all again", extra={"stream": stream})
                    last, newest = 0, None
                    continue
                consumer = await self._js.add_consumer(stream, config)
                pending = consumer.num_pending or 0
                check_cancelled()
                if num_tries < MOST_TRIES and await self._may_lag(stream, consumer):
                    num_tries += 1
                    await self._js.delete_consumer(stream, consumer.name)
                    continue
                num_tries = num_refused = 0
            except FAILURES as error:
                has_held = generation == self.reconnects and not self.is_away
                is_refused = getattr(error, "err_code", None) == NO_MORE_CONSUMERS
                num_refused += is_refused
                waits = is_refused and num_refused <= MOST_REFUSALS
                if not caught_up and last < start and has_held and not waits:
                    raise BusError(f"read {stream}: {error!r}") from error
                await self.wait_reconnected(generation, timeout_s=1.0)
                continue
            try:
                async with Pulls.of(self._client, consumer, self.telling_reconnects) as pulls:
                    while generation == self.reconnects:
                        if not pending and not caught_up:
                            caught_up = True
                            yield None
                        check_cancelled()
                        # more than there are would be waited for, and those that come be held back meanwhile
                        messages, end = await pulls.ask(min(fetch, pending))
                        check_cancelled()
                        if end == FORGOTTEN and not messages:
                            break
                        if not messages and (pending or end != WAITED_IN_VAIN):  # what was pending may be deleted
                            pending = (await self._js.consumer_info(stream, consumer.name)).num_pending or 0
                            if pending:
                                await self.wait_reconnected(generation, UNREADABLE_S)
                        for msg in messages:
                            meta = msg.metadata
                            last, pending = meta.sequence.stream, meta.num_pending or 0
                            stored_s = meta.timestamp.timestamp()
                            newest = Raw(msg.data, msg.subject, last, msg.headers or {}, stored_s)
                            yield newest
            except FAILURES as error:
                logger.warning("stream reader lost its consumer", extra={"stream": stream, "error": repr(error)})
                await self.wait_reconnected(generation, timeout_s=0.5)
            if not goes_on:
                return

    async def _has_lost(self, stream: str, read: Raw) -> bool:
        """Whether the store is one of an earlier time than this was stored: it has not come so far, or stands with
        another message there."""
        try:
            found = await self._js.get_msg(stream, read.sequence)
        except nats.js.errors.NotFoundError:  # deleted, where it has come so far
            return bool((await self._js.stream_info(stream)).state.last_seq < read.sequence)
        assert found.time is not None
        is_same = found.subject == read.subject and abs(found.time.timestamp() - read.stored_s) < SAME_TIME_S
        return not is_same

    async def _may_lag(self, stream: str, consumer: ConsumerInfo) -> bool:
        """In a cluster a consumer is on any server that has a copy, and one that was away may not have yet all that was
        acknowledged; the one that takes what is stored has."""
        if self.replicas == 1 or consumer.cluster is None:
            return False
        reply = await self._ask(f"{INFO_API}.{stream}", {}, NO_SUCH_STREAM)
        return bool(reply.cluster.leader) and reply.cluster.leader != consumer.cluster.leader


def _size(info: StreamInfo) -> StreamSize:
    state = info.state
    return StreamSize(state.messages, state.bytes, state.consumer_count, info.config.num_replicas or 1)


def _stored(raw: Raw, message_type: type[T], instead: Callable[[str], T] | None) -> Stored[T] | None:
    try:
        message = decode(raw.data, message_type)
    except msgspec.DecodeError as error:
        logger.error("a stored message does not parse", extra={"subject": raw.subject, "why": str(error)})
        if instead is None:
            return None
        message = instead(raw.subject)
    return Stored(message, raw.subject, raw.sequence)


class _ApiError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _State(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Cluster(msgspec.Struct):
    leader: str = ""


class _ApiReply(msgspec.Struct):
    error: _ApiError | None = None
    total: int = 0
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)
    state: _State = msgspec.field(default_factory=_State)
