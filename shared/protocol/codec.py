"""MessagePack for the live traffic, whose encoder and decoders are built once; JSON for the records in KV buckets."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """One message as MessagePack."""
    return _encoder.encode(message)


@functools.cache
def _decoder(message_type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message_type)


def prepare(message_type: type[object]) -> None:
    """Make its decoder now. msgspec crashed where one thread made one while another collected garbage."""
    _decoder(cast(Any, message_type))


def decode(data: bytes, message_type: type[T]) -> T:
    """Raises msgspec.DecodeError or msgspec.ValidationError for bytes that are not such a message."""
    return cast(T, _parsed(_decoder(cast(Any, message_type)).decode, data))


def encode_record(record: object) -> bytes:
    """One KV record as JSON, readable with any NATS tool."""
    return msgspec.json.encode(record)


@functools.cache
def _record_decoder(record_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type)


def decode_record(data: bytes, record_type: type[T]) -> T:
    """Raises msgspec.DecodeError or msgspec.ValidationError for bytes that are not such a record."""
    return cast(T, _parsed(_record_decoder(cast(Any, record_type)).decode, data))


def _parsed(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """msgspec has errors of its own for all but bytes that are no text, and what is nested too deeply."""
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"{type(error).__name__}: {error}") from error
