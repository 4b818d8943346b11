"""Random operations on a server, and what it answers, without what differs from run to run: for a comparison of two."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import nats.errors
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

QUIET_S = 0.4  # nothing more comes
SETTLED_S = 0.004  # nats-server's consumers have learnt of what was stored
DELETED_S = 0.03  # nats-server has removed a stream's files: one made at once by its name would have them
VOLATILE = ("ts", "created", "metadata", "cluster", "first_ts", "last_ts", "last_active", "time", "num_waiting")

Operation = tuple[str, dict[str, Any]]

STREAMS, CONSUMERS = ("S", "T"), ("c", "d", "e")
TOKENS = ("a", "b", "c")
streams = st.sampled_from(STREAMS)
consumers = st.sampled_from(CONSUMERS)
subjects = st.builds(lambda stream, token: f"{stream.lower()}.{token}", streams, st.sampled_from(TOKENS))
patterns = st.builds(lambda stream, token: f"{stream.lower()}.{token}", streams, st.sampled_from((*TOKENS, "*", ">")))
sequences = st.integers(0, 14)
flags = st.booleans()


def fields(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of them."""
    return st.fixed_dictionaries({}, optional=optional)


stream_configs = fields(
    max_msgs=st.integers(1, 4),
    max_bytes=st.integers(60, 200),
    max_msgs_per_subject=st.integers(1, 2),
    max_msg_size=st.integers(3, 30),
    discard=st.just("new"),
    discard_new_per_subject=st.just(True),
    allow_direct=flags,
    allow_rollup_hdrs=flags,
    deny_delete=st.just(True),
    deny_purge=st.just(True),
    storage=st.just("memory"),
    retention=st.sampled_from(("limits", "limits", "workqueue", "interest")),
    allow_msg_ttl=flags,
    max_consumers=st.integers(1, 2),
)
headers = fields(
    **{
        "Nats-Msg-Id": st.sampled_from(("1", "2")),
        "Nats-Expected-Last-Sequence": sequences.map(str),
        "Nats-Expected-Last-Subject-Sequence": sequences.map(str),
        "Nats-Expected-Last-Msg-Id": st.sampled_from(("1", "2")),
        "Nats-Expected-Stream": st.sampled_from(STREAMS),
        "Nats-Rollup": st.sampled_from(("sub", "all", "other")),
        "Nats-TTL": st.sampled_from(("1h", "5000", "x")),
        "Own": st.text("xy z", max_size=4),
    }
)
consumer_configs = st.fixed_dictionaries(
    {"ack_policy": st.sampled_from(("none", "explicit", "all"))},
    optional={
        "deliver_policy": st.sampled_from(("all", "last", "new", "last_per_subject", "by_start_sequence")),
        "opt_start_seq": sequences,
        "filter_subject": patterns,
        "headers_only": flags,
        "max_deliver": st.integers(1, 2),
        "max_ack_pending": st.integers(1, 2),
        "max_waiting": st.integers(1, 3),
        "mem_storage": flags,
        "durable": flags,
    },
)
pulls = st.one_of(
    st.fixed_dictionaries(
        {"batch": st.integers(1, 5), "no_wait": st.just(True)}, optional={"max_bytes": st.integers(20, 300)}
    ),
    st.fixed_dictionaries(
        {"batch": st.integers(1, 3), "expires": st.just(60_000_000)}, optional={"max_bytes": st.integers(20, 300)}
    ),
)


def _of(operation: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(operation), st.fixed_dictionaries(arguments))


publishing = st.one_of(
    _of("publish", subject=subjects, size=st.integers(0, 12), headers=st.sampled_from((None, {}))),
    _of("publish", subject=subjects, size=st.integers(0, 12), headers=headers),
)
managing = st.one_of(
    _of("create_stream", name=streams, config=stream_configs),
    _of("update_stream", name=streams, config=stream_configs),
    _of("delete_stream", name=streams),
    _of("create_consumer", stream=streams, name=consumers, config=consumer_configs),
    _of("delete_consumer", stream=streams, name=consumers),
)
changing = st.one_of(
    _of("delete_message", stream=streams, sequence=sequences),
    _of("purge", stream=streams, request=fields(filter=patterns, seq=sequences, keep=st.integers(0, 2))),
)
asking = st.one_of(
    _of("stream_info", stream=streams, pattern=st.sampled_from(("", ">", "s.*", "t.a"))),
    _of("get", stream=streams, request=fields(seq=sequences, last_by_subj=patterns, next_by_subj=patterns)),
    _of("get_directly", stream=streams, request=fields(seq=sequences, last_by_subj=subjects, next_by_subj=patterns)),
    _of("consumer_info", stream=streams, name=consumers),
    _of("names", stream=streams, subject=patterns),
)
consuming = st.one_of(
    _of("pull", stream=streams, name=consumers, request=pulls),
    _of("pull", stream=streams, name=consumers, request=pulls),
    _of("acknowledge", nth=st.integers(0, 3), kind=st.sampled_from(("+ACK", "-NAK", "+WPI", "+TERM", ""))),
)
talking = st.one_of(
    _of("subscribe", name=consumers, subject=patterns, queue=st.sampled_from(("", "q"))),
    _of("unsubscribe", name=consumers),
    _of("tell", subject=subjects),
    _of("ask", subject=subjects),
)
beginning = st.tuples(
    _of("create_stream", name=st.just("S"), config=stream_configs),
    _of("publish", subject=subjects, size=st.integers(0, 12), headers=st.just({})),
    _of("create_consumer", stream=st.just("S"), name=consumers, config=consumer_configs),
)
operation = st.one_of(publishing, publishing, managing, changing, asking, consuming, consuming, talking)
runs = st.tuples(beginning, st.lists(operation, min_size=1, max_size=30)).map(lambda parts: [*parts[0], *parts[1]])


class Player:
    """Does operations, one after the other, by one connection, and tells the answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unacknowledged: list[Msg] = []
        self._subscriptions: dict[str, Subscription] = {}
        self._num_told = 0

    async def play(self, operations: list[Operation]) -> list[Any]:
        """One answer each. The server is empty afterwards."""
        answers = [await getattr(self, f"_{kind}")(**arguments) for kind, arguments in operations]
        for name in STREAMS:
            answer = await self._delete_stream(name)
            assert answer.get("success") or answer["error"]["code"] == 404, answer
        for subscription in self._subscriptions.values():
            await subscription.unsubscribe()
        return answers

    async def _api(self, subject: str, request: object = None) -> Any:
        data = b"" if request is None else json.dumps(request).encode()
        return await self._ask_for(f"$JS.API.{subject}", data)

    async def _ask_for(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
        try:
            msg = await self._client.request(subject, data, timeout=5, headers=headers)
        except nats.errors.Error as error:
            return repr(error)
        return _told(msg)

    async def _create_stream(self, name: str, config: dict[str, Any]) -> Any:
        return await self._api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]} | config)

    async def _update_stream(self, name: str, config: dict[str, Any]) -> Any:
        return await self._api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]} | config)

    async def _delete_stream(self, name: str) -> Any:
        answer = await self._api(f"STREAM.DELETE.{name}")
        await asyncio.sleep(DELETED_S)
        return answer

    async def _create_consumer(self, stream: str, name: str, config: dict[str, Any]) -> Any:
        await asyncio.sleep(SETTLED_S)
        config = {"name": name} | config
        if config.pop("durable", False):
            config["durable_name"] = name
        if config["ack_policy"] == "none":
            config.pop("max_ack_pending", None)
        return await self._api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    async def _delete_consumer(self, stream: str, name: str) -> Any:
        return await self._api(f"CONSUMER.DELETE.{stream}.{name}")

    async def _consumer_info(self, stream: str, name: str) -> Any:
        await asyncio.sleep(SETTLED_S)
        return await self._api(f"CONSUMER.INFO.{stream}.{name}")

    async def _publish(self, subject: str, size: int, headers: dict[str, str] | None) -> Any:
        return await self._ask_for(subject, b"x" * size, headers)

    async def _delete_message(self, stream: str, sequence: int) -> Any:
        return await self._api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    async def _purge(self, stream: str, request: dict[str, Any]) -> Any:
        await asyncio.sleep(SETTLED_S)
        return await self._api(f"STREAM.PURGE.{stream}", request)

    async def _stream_info(self, stream: str, pattern: str) -> Any:
        await asyncio.sleep(SETTLED_S)
        request = {"subjects_filter": pattern} if pattern else {"deleted_details": True}
        return await self._api(f"STREAM.INFO.{stream}", request)

    async def _get(self, stream: str, request: dict[str, Any]) -> Any:
        return await self._api(f"STREAM.MSG.GET.{stream}", request)

    async def _get_directly(self, stream: str, request: dict[str, Any]) -> Any:
        return await self._api(f"DIRECT.GET.{stream}", request)

    async def _names(self, stream: str, subject: str) -> Any:
        return [
            await self._api("STREAM.NAMES", {"subject": subject}),
            await self._api(f"CONSUMER.NAMES.{stream}"),
        ]

    async def _pull(self, stream: str, name: str, request: dict[str, Any]) -> Any:
        await asyncio.sleep(SETTLED_S)
        incoming = await self._client.subscribe(self._client.new_inbox())
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=incoming.subject)
        told: list[Any] = []
        try:
            while len(told) < request["batch"] + bool(request.get("max_bytes")):
                msg = await incoming.next_msg(QUIET_S)
                told.append(_told(msg))
                if not msg.reply:
                    break
                self._unacknowledged.append(msg)
        except nats.errors.TimeoutError:
            told.append("nothing more")
        await incoming.unsubscribe()
        return told

    async def _acknowledge(self, nth: int, kind: str) -> Any:
        if nth >= len(self._unacknowledged):
            return None
        msg = self._unacknowledged.pop(nth)
        try:
            return _told(await self._client.request(msg.reply, kind.encode(), timeout=QUIET_S))
        except nats.errors.Error as error:
            return repr(error)

    async def _subscribe(self, name: str, subject: str, queue: str) -> Any:
        await self._unsubscribe(name)
        self._subscriptions[name] = await self._client.subscribe(subject, queue=queue)

    async def _unsubscribe(self, name: str) -> Any:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            await subscription.unsubscribe()

    async def _tell(self, subject: str) -> Any:
        """What each subscription has by then; of a queue group only how many."""
        self._num_told += 1
        await self._client.publish(subject, str(self._num_told).encode())
        await self._client.flush()
        await asyncio.sleep(SETTLED_S)
        alone: list[Any] = []
        num_shared = 0
        for name in sorted(self._subscriptions):
            subscription = self._subscriptions[name]
            while subscription.pending_msgs:
                msg = await subscription.next_msg()
                if subscription.queue:
                    num_shared += 1
                else:
                    alone.append((name, msg.subject, msg.data, msg.headers))
        return alone, num_shared

    async def _ask(self, subject: str) -> Any:
        try:
            return _told(await self._client.request(subject, b"", timeout=0.05))
        except nats.errors.Error as error:
            return repr(error)


def _told(msg: Msg) -> Any:
    """A message, or an answer, without times."""
    if msg.data.startswith(b"{"):
        return _settled(json.loads(msg.data))
    headers = {str(getattr(key, "value", key)): value for key, value in (msg.headers or {}).items()}
    headers.pop("Nats-Time-Stamp", None)
    reply = msg.reply.split(".")
    if len(reply) == 9:
        del reply[7]
    subject = "" if msg.subject.startswith("_INBOX") else msg.subject
    return subject, ".".join(reply), msg.data, headers


def _settled(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return [_settled(each) for each in answer] if isinstance(answer, list) else answer
    kept = {name: _settled(value) for name, value in answer.items() if name not in VOLATILE}
    if "hdrs" in kept:
        kept["hdrs"] = base64.b64decode(kept["hdrs"])
    return kept
