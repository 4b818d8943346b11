"""What is told of streams and consumers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.nats.jetstream.config import NS
from tests.simulation.nats.jetstream.delivery import PullDelivery

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.consumer import Consumer
    from tests.simulation.nats.jetstream.stream import Stream

NEVER = "0001-01-01T00:00:00Z"


def iso(time_ns: int) -> str:
    """Of unix time, to the nanosecond."""
    whole = datetime.fromtimestamp(time_ns // NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{time_ns % NS:09d}".rstrip("0").rstrip(".") + "Z"


def stream_info(stream: Stream, has_deleted: bool = False) -> dict[str, Any]:
    store = stream.store
    first = store.messages.get(store.first)
    state: dict[str, Any] = {
        "messages": len(store.messages),
        "bytes": store.num_bytes,
        "first_seq": store.first,
        "first_ts": NEVER if first is None else iso(first.stored_ns),
        "last_seq": store.last,
        "last_ts": iso(store.last_ns) if store.last_ns else NEVER,
        "consumer_count": len(stream.consumers),
    }
    if store.subjects:
        state["num_subjects"] = len(store.subjects)
    num_deleted = max(0, store.last - store.first + 1) - len(store.messages)
    if num_deleted > 0 and (store.last or (has_deleted and stream.config["storage"] == "file")):
        state["num_deleted"] = num_deleted
        if has_deleted:
            every = range(store.first, store.last + 1)
            state["deleted"] = [sequence for sequence in every if sequence not in store.messages]
    now = iso(stream.jetstream.now_ns())
    return {"config": dict(stream.config), "created": iso(stream.created_ns), "state": state, "ts": now}


def consumer_info(consumer: Consumer) -> dict[str, Any]:
    delivered = _pair(consumer.last_delivered)
    if consumer.last_active_ns is not None:
        delivered["last_active"] = iso(consumer.last_active_ns)
    delivery = consumer.delivery
    told: dict[str, Any] = {
        "stream_name": consumer.stream.name,
        "name": consumer.name,
        "created": iso(consumer.created_ns),
        "config": dict(consumer.config),
        "delivered": delivered,
        "ack_floor": _pair(consumer.acked),
        "num_ack_pending": len(consumer.pending),
        "num_redelivered": len(consumer.pending.counts),
        "num_waiting": delivery.num_waiting(),
        "num_pending": consumer.checked_pending(),
        "ts": iso(consumer.stream.jetstream.now_ns()),
    }
    if not isinstance(delivery, PullDelivery) and delivery.is_in_use():
        told["push_bound"] = True
    return told


def _pair(sequences: tuple[int, int]) -> dict[str, Any]:
    return {"consumer_seq": sequences[0], "stream_seq": sequences[1]}
