"""Messages that nobody should send, on every subject of a running stack: seen ones changed, made ones, and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.protocol.codec import encode, encode_record
from shared.protocol.subjects import LEASES_BUCKET, PREFIX
from tests.fuzzing.addresses import all_subjects, buckets
from tests.fuzzing.messages import Maker, Names, harvest, message_types, mutate, spoil

MAX_SEEN = 40  # of each subject
UNKNOWN_IDS = ("nobody", "batch-unknown.1")
IDS = ("executor_id", "gateway_id", "request_id", "holder_id")
REPLIES = "fuzz.replies"
STRANGE_KEYS = ("a.b.c", "=", "x" * 500, "\\", "..")
FLUSH_EVERY = 100
HOSTILITIES = (0.0, 0.1, 0.5)


class Storm:
    """``watch`` while the stack works, then ``messages`` or ``send``."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = Random(seed)
        self._seen: dict[str, list[Any]] = {}  # by subject, as plain data
        self._records: dict[str, Any] = {}  # the newest by subject
        self.names: Names = {}
        self.num_sent = 0

    @classmethod
    async def connect(cls, url: str, seed: int) -> Storm:
        return cls(await nats.connect(url, pending_size=64 * 1024**2), seed)

    async def watch(self) -> None:
        """What goes over the bus from here on is what is changed later."""
        await self._client.subscribe(f"{PREFIX}.>", cb=self._on_message)
        await self._client.subscribe("$KV.>", cb=self._on_record)

    async def stop_watching(self) -> None:
        for subscription in list(self._client._subs.values()):
            await subscription.unsubscribe()

    def num_seen(self, field: str) -> int:
        """Values of a field of this name, in whatever message; a few at most are kept."""
        return len(self.names.get(field, ()))

    @property
    def ids(self) -> list[str]:
        """That a subject can be about: known ones, and unknown ones."""
        known = [each for name in IDS for each in self.names.get(name, ())[-MAX_SEEN:]]
        return [each for each in dict.fromkeys((*known, *UNKNOWN_IDS)) if _is_in_subject(each)]

    def messages(self, is_heard: Callable[[str], bool], share: float, per_seen: int) -> Iterator[tuple[str, bytes]]:
        """Of every type on every subject that is heard, or is about nobody, this share; of each message seen so many
        changed ones; among both some bytes of no kind. In an order that the seed gives."""
        made = [*self._made(is_heard, share), *self._changed(per_seen)]
        self._random.shuffle(made)
        return iter(made)

    def records(self, share: float, per_seen: int) -> Iterator[tuple[str, bytes]]:
        """The same for key-value buckets, under the keys that were seen and others. Leases stay: who loses its own is
        to end."""
        made = [*self._made_records(share), *self._changed_records(per_seen)]
        self._random.shuffle(made)
        return iter(made)

    async def send(self, messages: Iterator[tuple[str, bytes]]) -> None:
        """All of them, half of them as requests; returns when the server has them."""
        for subject, data in messages:
            if len(data) > self._client.max_payload:
                continue
            await self._client.publish(subject, data, reply=REPLIES if self._random.random() < 0.5 else "")
            self.num_sent += 1
            if self.num_sent % FLUSH_EVERY == 0:
                await self._client.flush(30)
        await self._client.flush(30)

    async def close(self) -> None:
        await self._client.close()

    def _made(self, is_heard: Callable[[str], bool], share: float) -> Iterator[tuple[str, bytes]]:
        types: Sequence[type[msgspec.Struct]] = message_types()
        unknown = all_subjects(UNKNOWN_IDS)
        for subject in dict.fromkeys([*filter(is_heard, all_subjects(self.ids)), *unknown]):
            for each in types:
                if self._random.random() < share:
                    maker = Maker(self._random, self.names, self._random.choice(HOSTILITIES))
                    yield subject, self._perhaps_spoilt(encode(maker.value(each)))

    def _changed(self, per_seen: int) -> Iterator[tuple[str, bytes]]:
        for subject, seen in self._seen.items():
            for message in seen:
                for _ in range(per_seen):
                    changed = message
                    for _ in range(self._random.randrange(1, 4)):
                        changed = mutate(changed, self._random)
                    yield subject, self._perhaps_spoilt(encode(changed))

    def _made_records(self, share: float) -> Iterator[tuple[str, bytes]]:
        for bucket in buckets():
            known = [each.split(".", 2)[2] for each in self._records if each.split(".")[1] == bucket]
            for key in (*known, *self.ids, *STRANGE_KEYS):
                for each in message_types() if bucket != LEASES_BUCKET else ():
                    if self._random.random() < share:
                        maker = Maker(self._random, self.names, self._random.choice(HOSTILITIES))
                        yield f"$KV.{bucket}.{key}", self._perhaps_spoilt(encode_record(maker.value(each)))

    def _changed_records(self, per_seen: int) -> Iterator[tuple[str, bytes]]:
        for subject, record in self._records.items():
            for _ in range(per_seen if LEASES_BUCKET not in subject else 0):
                yield subject, self._perhaps_spoilt(encode_record(mutate(record, self._random)))

    def _perhaps_spoilt(self, data: bytes) -> bytes:
        return spoil(data, self._random) if self._random.random() < 0.1 else data

    async def _on_message(self, msg: Msg) -> None:
        if msg.data and (message := _plain(msg.data)) is not None:
            harvest(message, self.names)
            seen = self._seen.setdefault(msg.subject, [])
            if len(seen) < MAX_SEEN:
                seen.append(message)
            else:
                seen[self._random.randrange(MAX_SEEN)] = message

    async def _on_record(self, msg: Msg) -> None:
        if (record := _plain(msg.data, msgspec.json.decode)) is not None:
            harvest(record, self.names)
            self._records[msg.subject] = record


def _plain(data: bytes, decode: Callable[[bytes], Any] = msgspec.msgpack.decode) -> Any:
    """None where it is nothing of the kind."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        return None


def _is_in_subject(each: Any) -> bool:
    return isinstance(each, str) and bool(each) and not set(each) & set(" \t\r\n*>")
