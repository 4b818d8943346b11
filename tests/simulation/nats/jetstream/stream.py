"""A stream: what it takes, keeps and gives up, and who reads it."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream import errors
from tests.simulation.nats.jetstream.conditions import MESSAGE_ID, ROLLUP, SentIds, check, check_stream_and_ttl, ttl_ns
from tests.simulation.nats.jetstream.config import NS, Config
from tests.simulation.nats.jetstream.consumer import Consumer
from tests.simulation.nats.jetstream.store import Message, Store
from tests.simulation.nats.session import Headers, headers_size
from tests.simulation.nats.subjects import Listeners, matches

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.jetstream import JetStream


@dataclass(eq=False, slots=True)
class _Follower:
    """One filter of one consumer."""

    consumer: Consumer
    subject: str
    queue: str = ""


class Stream:
    """Everything that changes its messages is here; its consumers are told."""

    def __init__(self, jetstream: JetStream, config: Config) -> None:
        self.jetstream = jetstream
        self.config = config
        self.name: str = config["name"]
        self.created_ns = jetstream.now_ns()
        self.consumers: dict[str, Consumer] = {}
        self.store = self._empty()
        self._sent = SentIds(config["duplicate_window"])
        self._followers: Listeners[_Follower] = Listeners()
        self._following: dict[str, list[_Follower]] = {}  # by consumer
        self._signals: deque[Message] = deque()
        self._ends: list[tuple[int, int]] = []  # heap of (unix time in ns, sequence) of messages with a TTL
        self._loop = asyncio.get_running_loop()
        self._signalling: asyncio.Handle | None = None
        self._ageing: asyncio.TimerHandle | None = None
        self._syncing: asyncio.TimerHandle | None = None
        self.not_synced_since_s: float | None = None  # the event loop's time

    def _empty(self) -> Store:
        return Store(self._is_file, may_lose=self._is_file and self.jetstream.sync_interval_s > 0)

    @property
    def _is_file(self) -> bool:
        return bool(self.config["storage"] == "file")

    # messages come

    def publish(self, subject: str, headers: Headers | None, data: bytes) -> tuple[int, bool]:
        """(its sequence, whether it was there already). Raises ApiError."""
        config, now_ns = self.config, self.jetstream.now_ns()
        if config["sealed"]:
            raise errors.STREAM_SEALED
        if 0 <= config["max_msg_size"] < headers_size(headers) + len(data):
            raise errors.MESSAGE_TOO_LARGE
        lifetime_ns = 0
        if headers:
            check_stream_and_ttl(headers, config)
            known = self._sent.find(headers.get(MESSAGE_ID), now_ns)
            if known:
                return known, True
            check(headers, subject, self.store, config, self._sent.last)
            lifetime_ns = ttl_ns(headers, config)
        self._make_room(subject, headers, data)
        message = self._append(subject, headers, data, now_ns)
        if headers:
            self._sent.add(headers.get(MESSAGE_ID), message.sequence, now_ns)
            self._roll_up(headers, message)
        if lifetime_ns:
            heapq.heappush(self._ends, (now_ns + lifetime_ns, message.sequence))
        self._age_later()
        return message.sequence, False

    def _append(self, subject: str, headers: Headers | None, data: bytes, now_ns: int) -> Message:
        message = self.store.append(subject, headers, data, now_ns)
        followers = self._followers.of(subject)[0]
        if self.config["retention"] == "interest" and not followers:
            self.store.remove(message.sequence)
        for follower in followers:
            follower.consumer.on_stored(message)
        if followers:
            self._signals.append(message)
            if self._signalling is None:
                self._signalling = self._loop.call_soon(self._signal)
        if self.config["discard"] == "old":
            self._drop_oldest()
        self._sync_later()
        return message

    def _make_room(self, subject: str, headers: Headers | None, data: bytes) -> None:
        if self._is_file and self.jetstream.disk_is_full:
            raise errors.store_failed("no space left on device")
        """Raises ApiError where the stream is full, and keeps what it has."""
        config, store = self.config, self.store
        of_subject = store.of_subject(subject)
        replaces = 0 < config["max_msgs_per_subject"] <= len(of_subject)
        if config["discard"] == "new":
            if replaces and config.get("discard_new_per_subject"):
                raise errors.store_failed("maximum messages per subject exceeded")
            if 0 < config["max_msgs"] <= len(store.messages) and not replaces:
                raise errors.store_failed("maximum messages exceeded")
            num_bytes = store.size_of(subject, headers, data)
            if 0 < config["max_bytes"] <= store.num_bytes + num_bytes:
                replaced = store.messages[next(iter(of_subject))].num_bytes if replaces else 0
                if replaced <= num_bytes:
                    raise errors.store_failed("maximum bytes exceeded")
        if replaces:
            self.remove(next(iter(of_subject)))

    def _drop_oldest(self) -> None:
        config, store = self.config, self.store
        while 0 < config["max_msgs"] < len(store.messages) or 0 < config["max_bytes"] < store.num_bytes:
            self.remove(store.first)

    def _roll_up(self, headers: Headers, message: Message) -> None:
        if headers.get(ROLLUP) == "sub":
            self.purge(message.subject, keep=1)
        elif headers.get(ROLLUP) == "all":
            self.purge(keep=1)

    def _signal(self) -> None:
        """Consumers learn of what is new a moment after it is stored, as in nats-server."""
        self._signalling = None
        for _ in range(len(self._signals)):
            message = self._signals.popleft()
            for follower in self._followers.of(message.subject)[0]:
                follower.consumer.on_signal(message)

    # messages go

    def remove(self, sequence: int) -> bool:
        """False where it is not there."""
        message = self.store.remove(sequence)
        if message is None:
            return False
        for follower in self._followers.of(message.subject)[0]:
            follower.consumer.on_removed(message)
        self._sync_later()
        return True

    def delete(self, sequence: int) -> None:
        """By an API request. Raises ApiError."""
        if self.config["sealed"] or self.config["deny_delete"]:
            raise errors.delete_failed("message delete not permitted")
        if sequence > self.store.last and self._is_file:
            raise errors.delete_failed("stream store EOF")
        if not self.remove(sequence):
            raise errors.delete_failed("no message found") if self._is_file else errors.no_sequence(sequence)

    def purge(self, subject: str = "", before: int = 0, keep: int = 0) -> int:
        """Those of matching subjects, all but the newest ``keep``, or those before a sequence; how many they were."""
        store = self.store
        last = store.last
        found = store.sequences([subject] if subject else [], 1)
        if before:
            found = [sequence for sequence in found if sequence < before]
        if keep:
            found = found[: max(0, len(found) - keep)]
        for sequence in found:
            self.remove(sequence)
        if not subject and not store.messages:
            store.skip_to(max(last + 1, before))
        for consumer in self.consumers.values():
            if not consumer.is_asleep:
                consumer.on_purged()
        return len(found)

    def _age_later(self) -> None:
        """Set the timer for the next message that is too old."""
        due_ns = [self._ends[0][0]] if self._ends else []
        if self.config["max_age"] and self.store.messages:
            due_ns.append(self.store.messages[self.store.first].stored_ns + self.config["max_age"])
        if due_ns and self._ageing is None:
            delay_s = (min(due_ns) - self.jetstream.now_ns()) / NS
            self._ageing = self._loop.call_later(max(delay_s, 0.001), self._age)

    def _age(self) -> None:
        self._ageing = None
        now_ns, store, max_age = self.jetstream.now_ns(), self.store, self.config["max_age"]
        while self._ends and self._ends[0][0] <= now_ns:
            self.remove(heapq.heappop(self._ends)[1])
        while max_age and store.messages and store.messages[store.first].stored_ns + max_age <= now_ns:
            self.remove(store.first)
        self._age_later()

    # consumers

    def add_consumer(self, name: str, config: Config) -> Consumer:
        """Raises ApiError."""
        most = self.config["max_consumers"]
        if 0 < most <= len(self.consumers):
            raise errors.MAXIMUM_CONSUMERS
        consumer = Consumer(self, name, config, self.jetstream.now_ns())
        self.consumers[name] = consumer
        self.follow(consumer)
        return consumer

    def follow(self, consumer: Consumer) -> None:
        """From now on it is told of what comes and goes."""
        following = [_Follower(consumer, subject) for subject in consumer.filters or [">"]]
        self._following[consumer.name] = following
        for follower in following:
            self._followers.add(follower)

    def unfollow(self, consumer: Consumer) -> None:
        for follower in self._following.pop(consumer.name, ()):
            self._followers.remove(follower)

    def delete_consumer(self, name: str, why: str = "Consumer Deleted") -> None:
        consumer = self.consumers.pop(name)
        consumer.delete(why)
        self.unfollow(consumer)
        self._drop_all_unneeded()

    def on_acked(self, consumer: Consumer, sequence: int) -> None:
        if self.config["retention"] == "workqueue":
            self.remove(sequence)
        elif self.config["retention"] == "interest":
            self._drop_unneeded(sequence)

    def _drop_all_unneeded(self) -> None:
        if self.config["retention"] == "interest":
            for sequence in list(self.store.messages):
                self._drop_unneeded(sequence)

    def _drop_unneeded(self, sequence: int) -> None:
        message = self.store.messages.get(sequence)
        if message is not None and not any(
            sequence >= follower.consumer.next_sequence or sequence in follower.consumer.pending.delivered
            for follower in self._followers.of(message.subject)[0]
        ):
            self.remove(sequence)

    # its life

    def update(self, config: Config) -> None:
        self.config = config
        self._sent.window_ns = config["duplicate_window"]
        if config["discard"] == "old":
            self._drop_oldest()
        most = config["max_msgs_per_subject"]
        if most > 0:
            for sequences in [list(each) for each in self.store.subjects.values() if len(each) > most]:
                for sequence in sequences[:-most]:
                    self.remove(sequence)
        self._drop_all_unneeded()
        self._age_later()

    def delete_all(self) -> None:
        for name in list(self.consumers):
            self.consumers.pop(name).delete("Stream Deleted")
        self.stop()

    def stop(self) -> None:
        """The server's process ends."""
        for timer in (self._signalling, self._ageing, self._syncing):
            if timer is not None:
                timer.cancel()
        self._signalling = self._ageing = self._syncing = None
        self._signals.clear()
        for name, consumer in list(self.consumers.items()):
            consumer.close()
            if not self._is_file or consumer.config.get("mem_storage"):
                del self.consumers[name]

    def start(self) -> None:
        """It begins again, with what the disk has."""
        self._loop = asyncio.get_running_loop()
        if not self._is_file:
            self.store = self._empty()
        self._sent = SentIds(self.config["duplicate_window"])
        self._ends = []
        for message in self.store.messages.values():
            if message.headers:
                self._sent.add(message.headers.get(MESSAGE_ID), message.sequence, message.stored_ns)
                if lifetime_ns := ttl_ns(message.headers, self.config):
                    heapq.heappush(self._ends, (message.stored_ns + lifetime_ns, message.sequence))
        self._followers, self._following = Listeners(), {}
        for consumer in self.consumers.values():
            consumer.restart()
            self.follow(consumer)
        self._age_later()

    def cut_power(self) -> None:
        self.stop()
        self.store.cut_power(self.jetstream.rng)
        self.not_synced_since_s = None

    def _sync_later(self) -> None:
        """What a server that was killed had not synced waits for that of the next: until then the system has it."""
        interval_s = self.jetstream.sync_interval_s
        if not interval_s or self.store.is_synced:
            return
        if self.not_synced_since_s is None:
            self.not_synced_since_s = self._loop.time()
        if self._syncing is None:
            self._syncing = self._loop.call_later(interval_s, self.sync)

    def sync(self) -> None:
        self.store.sync()
        self.not_synced_since_s = None
        if self._syncing is not None:
            self._syncing.cancel()
            self._syncing = None

    # what it has

    def last_matching(self, subject: str) -> Message | None:
        return self.store.messages.get(self.store.last_of(subject))

    def next_matching(self, subject: str, start: int) -> Message | None:
        messages = self.store.messages
        if start in messages and matches(subject, messages[start].subject):
            return messages[start]
        found = self.store.sequences([subject], start)
        return messages[found[0]] if found else None
