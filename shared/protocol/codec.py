"""MessagePack for the live traffic, JSON for the records in KV buckets. Encoders and decoders are built once."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()


def encode(message: object) -> bytes:
    """One message as MessagePack."""
    return _encoder.encode(message)


@functools.cache
def _decoder(message_type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message_type)


def decode(data: bytes, message_type: type[T]) -> T:
    """Raises msgspec.DecodeError or msgspec.ValidationError for bytes that are not such a message."""
    return cast(T, _decoder(cast(Any, message_type)).decode(data))


def encode_record(record: object) -> bytes:
    """One KV record as JSON, readable with any NATS tool."""
    return _json_encoder.encode(record)


@functools.cache
def _record_decoder(record_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type)


def decode_record(data: bytes, record_type: type[T]) -> T:
    """Raises msgspec.DecodeError or msgspec.ValidationError for bytes that are not such a record."""
    return cast(T, _record_decoder(cast(Any, record_type)).decode(data))
