"""A consumer: its place in a stream, what it delivers, and what it waits to have acknowledged."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream.beginning import beginning
from tests.simulation.nats.jetstream.config import NS, Config, filters
from tests.simulation.nats.jetstream.delivery import PullDelivery, PushDelivery
from tests.simulation.nats.jetstream.pending import Pending
from tests.simulation.nats.jetstream.store import Message
from tests.simulation.nats.session import Headers, headers_size
from tests.simulation.nats.subjects import matches

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.stream import Stream

ASLEEP_S = 1.0  # without use
REMOVED, STALLED = 0, -1  # why there is no next message


class Consumer:
    """As nats-server's, on one server. It delivers in callbacks of its own, soon after there is something to."""

    def __init__(self, stream: Stream, name: str, config: Config, created_ns: int) -> None:
        self.stream = stream
        self.name = name
        self.config = config
        self.created_ns = created_ns
        self.filters = filters(config)
        self.pending = Pending()
        self.is_closed = False
        self.next_sequence = 0  # of the stream, that may be delivered
        self.consumer_sequence = 1  # of the next delivery
        self.num_pending = 0
        self.counted_to = 0  # the stream's last sequence that ``num_pending`` knows of
        self.acked = (0, 0)  # all up to there: (consumer's, stream's)
        self.last_active_ns: int | None = None
        self.last_delivered = (0, 0)
        self._ahead: deque[int] = deque()  # matching sequences from ``next_sequence`` on, and some that were removed
        self._skipping: deque[int] = deque()  # of last_per_subject: these first
        self._resume = 0  # after them
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self.is_asleep = False  # the stream tells it nothing: it looks when it is used
        self.delivery = self._new_delivery()
        self._start()

    # where it begins

    def _start(self) -> None:
        start, skipping = beginning(self.stream, self.config)
        if skipping:
            self._skipping.extend(skipping)
            self._resume = self.stream.store.last
        self.next_sequence = max(start, 1)
        self.acked = self.last_delivered = (0, self.next_sequence - 1)
        self._look_ahead()
        self._rest()

    def recount(self) -> None:
        """What is pending, of what the stream holds now."""
        store = self.stream.store
        self.counted_to = store.last
        skipping = sum(1 for sequence in self._skipping if sequence in store.messages)
        self.num_pending = skipping + sum(1 for sequence in self._ahead if sequence in store.messages)

    # what the stream tells

    def matches(self, subject: str) -> bool:
        return not self.filters or any(matches(each, subject) for each in self.filters)

    def on_stored(self, message: Message) -> None:
        """At once: what there is to be delivered."""
        while self._ahead and self._ahead[0] < self.stream.store.first:
            self._ahead.popleft()
        if message.sequence >= self.next_sequence:
            self._ahead.append(message.sequence)
        if len(self._ahead) > 64 + 2 * len(self.stream.store.messages):
            self._ahead = deque(sequence for sequence in self._ahead if sequence in self.stream.store.messages)

    def on_signal(self, message: Message) -> None:
        """A moment later: it counts, and is delivered."""
        if message.sequence > self.counted_to:
            self.num_pending += 1
        if message.sequence >= self.next_sequence:
            self.wake()

    def on_removed(self, message: Message) -> None:
        sequence = message.sequence
        if sequence >= self.next_sequence:
            self.num_pending -= 1
        if sequence in self.pending.delivered:
            self._done(sequence)

    def on_purged(self) -> None:
        """As nats-server does it after a purge of all."""
        store = self.stream.store
        self.next_sequence = max(self.next_sequence, store.first)
        for sequence in [each for each in self.pending.delivered if each not in store.messages]:
            self._done(sequence)
        self.recount()

    # delivering

    def wake(self) -> None:
        if self._soon is None and not self.is_closed:
            self._soon = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._soon = None
        is_stalled = False
        while not self.is_closed and self.delivery.is_ready:
            found = self._next()
            if found is None:
                break
            message, count = found
            if message is None:
                is_stalled = count == STALLED
                break
            if not self._send(message, count):
                break
        if not self.is_closed:
            self._set_timer(self.delivery.rest(not is_stalled))

    def _next(self) -> tuple[Message | None, int] | None:
        """(the next message, which delivery of it this is); (None, why) where it was removed, or too many are not
        acknowledged; None where there is none."""
        messages = self.stream.store.messages
        while self.pending.due:
            sequence = self.pending.due.popleft()
            message = messages.get(sequence)
            if message is None or sequence not in self.pending.delivered:
                continue
            count = self.pending.count(sequence)
            if 0 < self.config["max_deliver"] < count:
                self.pending.drop(sequence)
                self._raise_floor()
                continue
            return message, count
        if 0 < self.config.get("max_ack_pending", 0) <= len(self.pending):
            return None, STALLED
        if self._skipping:
            sequence = self._skipping.popleft()
            self.next_sequence = self._resume + 1 if not self._skipping else self.next_sequence + 1
            message = messages.get(sequence)
            return (message, 1) if message is not None else (None, REMOVED)
        while self._ahead:
            sequence = self._ahead.popleft()
            if sequence in messages and sequence >= self.next_sequence:
                self.next_sequence = sequence + 1
                return messages[sequence], 1
        self._at_end()
        return None

    def _at_end(self) -> None:
        self.next_sequence = max(self.next_sequence, self.stream.store.last + 1)
        if self.num_pending:
            self.num_pending = 0
            self.counted_to = self.stream.store.last

    def _send(self, message: Message, count: int) -> bool:
        """False where nobody takes it after all."""
        if count == 1:
            self.num_pending -= 1
        left = max(0, self.num_pending)
        where = f"{self.stream.name}.{self.name}.{count}.{message.sequence}.{self.consumer_sequence}"
        ack = f"$JS.ACK.{where}.{message.stored_ns}.{left}"
        headers, data = message.headers, message.data
        if self.config.get("headers_only"):
            headers, data = {**(headers or {}), "Nats-Msg-Size": str(len(data))}, b""
        num_bytes = len(message.subject) + len(ack) + headers_size(headers) + len(data)
        inbox = self.delivery.take(num_bytes)
        if inbox is None:
            self._put_back(message.sequence, count)
            return False
        self.stream.jetstream.deliver(inbox, message.subject, ack, data, headers)
        self.last_delivered = (self.consumer_sequence, max(self.last_delivered[1], message.sequence))
        if self.config["ack_policy"] != "none":
            self.pending.add(message.sequence, self.consumer_sequence, self._loop.time() + self._ack_wait_s(count))
        else:
            self.acked = self.last_delivered
        self.consumer_sequence += 1
        self.last_active_ns = self.stream.jetstream.now_ns()
        self.delivery.sent(inbox)
        return True

    def _put_back(self, sequence: int, count: int) -> None:
        if count == 1:
            self.num_pending += 1
            self.next_sequence = sequence
            self._ahead.appendleft(sequence)
        else:
            self.pending.counts[sequence] -= 1
            self.pending.due.append(sequence)

    def _ack_wait_s(self, count: int) -> float:
        backoff: list[int] = self.config.get("backoff") or [self.config["ack_wait"]]
        return backoff[min(count, len(backoff)) - 1] / NS

    def _set_timer(self, again_s: float | None) -> None:
        next_s = self.pending.expire(self._loop.time())
        times = [each for each in (again_s, next_s) if each is not None]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(times), self._deliver_later) if times else None
        if self.pending.due and self.delivery.is_ready:
            self.wake()

    def _deliver_later(self) -> None:
        self._timer = None
        if self._ahead or self._skipping or self.pending:
            self.pending.expire(self._loop.time())
            if self._soon is None:
                self._deliver()
        elif self._soon is None:  # there is nothing to deliver
            if self.delivery.is_ready:
                self._at_end()
            again_s = self.delivery.rest(True)
            if again_s is not None:
                self._timer = self._loop.call_at(again_s, self._deliver_later)

    # acknowledgements

    def on_ack(self, tokens: list[str], reply: str, data: bytes) -> None:
        """``tokens``: of the subject: (..., deliveries, stream's sequence, consumer's, time, pending)."""
        sequence, consumer_sequence = int(tokens[5]), int(tokens[6])
        kind = data.split(b" ", 1)[0].strip()
        if kind in (b"", b"+ACK", b"+OK", b"+TERM"):
            self._ack(sequence, consumer_sequence)
        elif kind == b"+NXT":
            self._ack(sequence, consumer_sequence)
            if isinstance(self.delivery, PullDelivery):
                self.delivery.request(reply, data[len(b"+NXT") :].strip())
            return
        elif kind == b"-NAK":
            self._nak(sequence, data[len(b"-NAK") :].strip())
        elif kind == b"+WPI" and sequence in self.pending.delivered:
            self.pending.delivered[sequence].again_s = self._loop.time() + self._ack_wait_s(1)
        if reply:
            self.stream.jetstream.deliver(reply, reply, "", b"", None)
        self.wake()

    def _ack(self, sequence: int, consumer_sequence: int) -> None:
        done = [sequence]
        if self.config["ack_policy"] == "all":
            done = [each for each in self.pending.delivered if each <= sequence]
        for each in done:
            self._done(each)
            self.stream.on_acked(self, each)

    def _nak(self, sequence: int, options: bytes) -> None:
        if sequence not in self.pending.delivered or sequence in self.pending.due:
            return
        delay_ns = json.loads(options).get("delay", 0) if options.startswith(b"{") else 0
        if delay_ns:
            self.pending.delivered[sequence].again_s = self._loop.time() + delay_ns / NS
        else:
            self.pending.due.append(sequence)

    def _done(self, sequence: int) -> None:
        if self.pending.drop(sequence):
            self._raise_floor()
            self.wake()

    def _raise_floor(self) -> None:
        if not self.pending:
            self.acked = self.last_delivered
        else:
            sequence = min(self.pending.delivered)
            first = self.pending.delivered[sequence]
            self.acked = max(self.acked, (first.consumer_sequence - 1, sequence - 1))

    # its life

    @property
    def is_ephemeral(self) -> bool:
        return not self.config.get("durable_name")

    def touch(self) -> None:
        """Somebody uses it."""
        self._used_s = self._loop.time()
        if self.is_asleep:
            self.is_asleep = False
            self._look_ahead()
            self.stream.follow(self)

    def _rest(self) -> None:
        self._used_s = self._loop.time()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self.config.get("inactive_threshold"):
            self._idle = self._loop.call_later(ASLEEP_S, self._look_for_use)

    def _look_for_use(self) -> None:
        """It sleeps while nobody uses it, and is deleted after a while."""
        threshold_s, used_s = self.config["inactive_threshold"] / NS, self._used_s
        next_s = self._loop.time() + threshold_s
        if not self.delivery.is_in_use():
            idle_s = self._loop.time() - used_s
            if idle_s >= threshold_s:
                self.stream.delete_consumer(self.name)
                return
            if idle_s >= ASLEEP_S and not self.pending and not self._skipping:
                self.is_asleep = True
                self._ahead.clear()
                self.stream.unfollow(self)
            next_s = used_s + (threshold_s if idle_s >= ASLEEP_S else min(ASLEEP_S, threshold_s))
        next_s = max(next_s, self._loop.time() + 0.001)  # times are rounded
        self._idle = self._loop.call_at(next_s, self._look_for_use)

    def _look_ahead(self) -> None:
        self._ahead = deque(self.stream.store.sequences(self.filters, max(self.next_sequence, self._resume + 1)))
        self.recount()

    def update(self, config: Config) -> None:
        """What may be changed of it."""
        self.config = config
        if self.filters != filters(config):
            self.stream.unfollow(self)
            self.filters = filters(config)
            self.stream.follow(self)
            self._look_ahead()
        self._rest()
        self.wake()

    def restart(self) -> None:
        """The server begins again: what was not acknowledged is delivered again in time."""
        store = self.stream.store
        self._loop = asyncio.get_running_loop()
        self._soon = self._timer = self._idle = None
        self.is_closed = False
        self.next_sequence = min(self.next_sequence, store.last + 1)
        for sequence in [each for each in self.pending.delivered if each not in store.messages]:
            self.pending.drop(sequence)
        for delivered in self.pending.delivered.values():
            delivered.again_s = self._loop.time() + self._ack_wait_s(1)
        self.is_asleep = False
        self._look_ahead()
        self.delivery = self._new_delivery()
        self._rest()
        self.wake()

    def _new_delivery(self) -> PullDelivery | PushDelivery:
        return PushDelivery(self) if self.config.get("deliver_subject") else PullDelivery(self)

    def close(self) -> None:
        self.is_closed = True
        self.delivery.close()
        for timer in (self._soon, self._timer, self._idle):
            if timer is not None:
                timer.cancel()

    def delete(self, why: str) -> None:
        self.delivery.end(why)
        self.close()

    def checked_pending(self) -> int:
        """As its info tells it."""
        self.touch()
        store = self.stream.store
        if (self.next_sequence > store.last and self.num_pending) or self.num_pending > len(store.messages):
            self.recount()
        return max(0, self.num_pending)

    def tell(self, inbox: str, headers: Headers, reply: str = "") -> None:
        self.stream.jetstream.deliver(inbox, inbox, reply, b"", headers)
