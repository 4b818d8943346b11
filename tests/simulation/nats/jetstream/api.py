"""JetStream's API: requests on ``$JS.API``, answered in JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.nats.jetstream import errors
from tests.simulation.nats.jetstream.config import Config, consumer_config, stream_config
from tests.simulation.nats.jetstream.consumer import Consumer
from tests.simulation.nats.jetstream.errors import ApiError
from tests.simulation.nats.jetstream.info import consumer_info, iso, stream_info
from tests.simulation.nats.jetstream.limits import (
    check_consumer,
    check_known,
    check_stream,
    check_stream_update,
    check_subjects,
)
from tests.simulation.nats.jetstream.store import Message
from tests.simulation.nats.jetstream.waiting import status
from tests.simulation.nats.session import Headers
from tests.simulation.nats.subjects import matches

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.jetstream import JetStream
    from tests.simulation.nats.jetstream.stream import Stream

TYPE = "io.nats.jetstream.api.v1."
MOST_SUBJECTS = 100_000  # of one page
MOST_NAMES = 1024
MOST_INFOS = 256

Answer = dict[str, Any]

EMPTY: dict[str, Answer] = {  # what an error's answer holds besides
    "stream_info_response": {"total": 0, "offset": 0, "limit": 0},
    "stream_purge_response": {"purged": 0},
    "stream_names_response": {"total": 0, "offset": 0, "limit": 0, "streams": None},
    "consumer_names_response": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    "stream_list_response": {"total": 0, "offset": 0, "limit": 0, "streams": None},
    "consumer_list_response": {"total": 0, "offset": 0, "limit": 0, "consumers": None},
}


class Api:
    """One method for each kind of request: (the rest of the subject's tokens, what is asked) -> the answer."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._kinds: dict[tuple[str, ...], tuple[str, Callable[[list[str], Config], Answer]]] = {
            ("INFO",): ("account_info_response", self._account_info),
            ("STREAM", "CREATE"): ("stream_create_response", self._create_stream),
            ("STREAM", "UPDATE"): ("stream_update_response", self._update_stream),
            ("STREAM", "INFO"): ("stream_info_response", self._stream_info),
            ("STREAM", "DELETE"): ("stream_delete_response", self._delete_stream),
            ("STREAM", "PURGE"): ("stream_purge_response", self._purge_stream),
            ("STREAM", "NAMES"): ("stream_names_response", self._stream_names),
            ("STREAM", "LIST"): ("stream_list_response", self._stream_list),
            ("STREAM", "MSG", "GET"): ("stream_msg_get_response", self._get_message),
            ("STREAM", "MSG", "DELETE"): ("stream_msg_delete_response", self._delete_message),
            ("CONSUMER", "CREATE"): ("consumer_create_response", self._create_consumer),
            ("CONSUMER", "DURABLE", "CREATE"): ("consumer_create_response", self._create_consumer),
            ("CONSUMER", "INFO"): ("consumer_info_response", self._consumer_info),
            ("CONSUMER", "DELETE"): ("consumer_delete_response", self._delete_consumer),
            ("CONSUMER", "NAMES"): ("consumer_names_response", self._consumer_names),
            ("CONSUMER", "LIST"): ("consumer_list_response", self._consumer_list),
        }

    def answer(self, tokens: list[str], reply: str, data: bytes) -> bool:
        """False where nobody listens for it. What is asked is done also where nobody wants the answer."""
        if tokens[:2] == ["DIRECT", "GET"] and len(tokens) > 2:
            return self._get_directly(tokens[2], ".".join(tokens[3:]), reply, data)
        for length in (3, 2, 1):
            kind = self._kinds.get(tuple(tokens[:length]))
            if kind is not None:
                break
        else:
            return True
        name, method = kind
        answer: Answer = {"type": TYPE + name}
        try:
            answer |= method(tokens[length:], _parsed(data))
        except ApiError as error:
            answer |= {"error": error.forgotten().as_dict()} | EMPTY.get(name, {})
        if reply:
            self._jetstream.deliver(reply, reply, "", json.dumps(answer, separators=(",", ":")).encode(), None)
        return True

    def _account_info(self, _: list[str], __: Config) -> Answer:
        streams = self._jetstream.streams.values()
        return {
            "memory": 0,
            "storage": sum(stream.store.num_bytes for stream in streams),
            "streams": len(streams),
            "consumers": sum(len(stream.consumers) for stream in streams),
            "limits": {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1},
            "api": {"level": 5, "total": 0, "errors": 0},
        }

    # streams

    def _stream(self, tokens: list[str]) -> Stream:
        stream = self._jetstream.streams.get(tokens[0]) if tokens else None
        if stream is None:
            raise errors.STREAM_NOT_FOUND
        return stream

    def _create_stream(self, tokens: list[str], asked: Config) -> Answer:
        if asked.get("name") != tokens[0]:
            raise errors.STREAM_NAME_DIFFERS
        check_known(asked)
        config = stream_config(asked)
        check_stream(config)
        stream = self._jetstream.streams.get(tokens[0])
        if stream is None:
            check_subjects(config, self._jetstream)
            stream = self._jetstream.add(config)
        elif stream.config != config:
            raise errors.STREAM_DIFFERS
        return stream_info(stream) | {"did_create": True}

    def _update_stream(self, tokens: list[str], asked: Config) -> Answer:
        if asked.get("name") != tokens[0]:
            raise errors.STREAM_NAME_DIFFERS
        check_known(asked)
        config = stream_config(asked)
        check_stream(config)
        stream = self._stream(tokens)
        check_stream_update(stream, config, self._jetstream)
        self._jetstream.update(stream, config)
        return stream_info(stream)

    def _stream_info(self, tokens: list[str], asked: Config) -> Answer:
        stream = self._stream(tokens)
        answer = stream_info(stream, has_deleted=bool(asked.get("deleted_details")))
        answer |= {"total": 0, "offset": 0, "limit": 0}
        pattern = asked.get("subjects_filter")
        found = sorted(stream.store.matching(pattern)) if pattern else []
        if found:
            offset = asked.get("offset") or 0
            page = found[offset : offset + MOST_SUBJECTS]
            counts = {subject: len(stream.store.of_subject(subject)) for subject in page}
            answer["state"] |= {"subjects": counts}
            answer |= {"total": len(found), "offset": offset, "limit": MOST_SUBJECTS}
        return answer

    def _delete_stream(self, tokens: list[str], _: Config) -> Answer:
        self._jetstream.delete(self._stream(tokens))
        return {"success": True}

    def _purge_stream(self, tokens: list[str], asked: Config) -> Answer:
        if asked.get("seq") and asked.get("keep"):
            raise errors.BAD_REQUEST
        stream = self._stream(tokens)
        if stream.config["sealed"] or stream.config["deny_purge"]:
            raise errors.purge_failed("stream purge not permitted")
        num = stream.purge(asked.get("filter") or "", asked.get("seq") or 0, asked.get("keep") or 0)
        return {"success": True, "purged": num}

    def _stream_names(self, _: list[str], asked: Config) -> Answer:
        names = [stream.name for stream in self._asked_for(asked)]
        page = _page(names, "streams", asked, MOST_NAMES)
        return page | {"streams": page["streams"] or None}

    def _stream_list(self, _: list[str], asked: Config) -> Answer:
        return _page([stream_info(stream) for stream in self._asked_for(asked)], "streams", asked, MOST_INFOS)

    def _asked_for(self, asked: Config) -> list[Stream]:
        subject = asked.get("subject")
        streams = [self._jetstream.streams[name] for name in sorted(self._jetstream.streams)]
        if not subject:
            return streams
        return [
            stream
            for stream in streams
            if any(matches(each, subject) or matches(subject, each) for each in stream.config["subjects"])
        ]

    # messages

    def _get_message(self, tokens: list[str], asked: Config) -> Answer:
        if not _is_one_question(asked):
            raise errors.BAD_REQUEST
        message = _found(self._stream(tokens), asked)
        if message is None:
            raise errors.NO_MESSAGE
        told: Answer = {"subject": message.subject, "seq": message.sequence}
        if message.headers is not None:
            told["hdrs"] = base64.b64encode(_raw(message.headers)).decode()
        if message.data:
            told["data"] = base64.b64encode(message.data).decode()
        return {"message": told | {"time": iso(message.stored_ns)}}

    def _get_directly(self, name: str, subject: str, reply: str, data: bytes) -> bool:
        stream = self._jetstream.streams.get(name)
        if stream is None or not stream.config["allow_direct"]:
            return False
        asked = {"last_by_subj": subject} if subject else _parsed(data)
        headers: Headers
        if not asked:
            headers = status(408, "Empty Request")
        elif not _is_one_question(asked) and asked != {"last_by_subj": subject}:
            headers = status(408, "Bad Request")
        elif (message := _found(stream, asked)) is None:
            headers = status(404, "Message Not Found")
        else:
            headers, data = (
                (message.headers or {})
                | {
                    "Nats-Stream": name,
                    "Nats-Subject": message.subject,
                    "Nats-Sequence": str(message.sequence),
                    "Nats-Time-Stamp": iso(message.stored_ns),
                },
                message.data,
            )
        if "Status" in headers:
            data = b""
        self._jetstream.deliver(reply, reply, "", data, headers)
        return True

    def _delete_message(self, tokens: list[str], asked: Config) -> Answer:
        self._stream(tokens).delete(asked.get("seq") or 0)
        return {"success": True}

    # consumers

    def _consumer(self, tokens: list[str]) -> Consumer:
        consumer = self._stream(tokens).consumers.get(tokens[1])
        if consumer is None:
            raise errors.CONSUMER_NOT_FOUND
        return consumer

    def _create_consumer(self, tokens: list[str], asked: Config) -> Answer:
        stream = self._stream(tokens)
        wanted = asked.get("config") or {}
        config = consumer_config(wanted)
        name = wanted.get("name") or wanted.get("durable_name") or (tokens[1] if len(tokens) > 1 else "")
        existing = stream.consumers.get(name)
        check_consumer(config, stream, existing)
        if existing is not None:
            existing.update(config)
            return consumer_info(existing)
        return consumer_info(stream.add_consumer(name or self._jetstream.new_name(), config))

    def _consumer_info(self, tokens: list[str], _: Config) -> Answer:
        return consumer_info(self._consumer(tokens))

    def _delete_consumer(self, tokens: list[str], _: Config) -> Answer:
        consumer = self._consumer(tokens)
        consumer.stream.delete_consumer(consumer.name)
        return {"success": True}

    def _consumer_names(self, tokens: list[str], asked: Config) -> Answer:
        return _page(sorted(self._stream(tokens).consumers), "consumers", asked, MOST_NAMES)

    def _consumer_list(self, tokens: list[str], asked: Config) -> Answer:
        consumers = self._stream(tokens).consumers
        return _page([consumer_info(consumers[name]) for name in sorted(consumers)], "consumers", asked, MOST_INFOS)


def _parsed(data: bytes) -> Config:
    if not data.strip():
        return {}
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise errors.BAD_JSON from error
    if not isinstance(parsed, dict):
        raise errors.BAD_JSON
    return parsed


def _page(found: list[Any], name: str, asked: Config, most: int) -> Answer:
    offset = asked.get("offset") or 0
    return {"total": len(found), "offset": offset, "limit": most, name: found[offset : offset + most]}


def _is_one_question(asked: Config) -> bool:
    by_sequence, last, following = asked.get("seq"), asked.get("last_by_subj"), asked.get("next_by_subj")
    if last:
        return not by_sequence and not following
    return bool(by_sequence or following)


def _found(stream: Stream, asked: Config) -> Message | None:
    if asked.get("last_by_subj"):
        return stream.last_matching(asked["last_by_subj"])
    if asked.get("next_by_subj"):
        return stream.next_matching(asked["next_by_subj"], asked.get("seq") or 0)
    return stream.store.messages.get(asked.get("seq") or 0)


def _raw(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
