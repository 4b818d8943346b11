"""Messages and records are what they are read as, or refused."""

import msgspec
import pytest

from shared.protocol import codec
from shared.protocol.codec import decode, decode_record, encode, encode_record, prepare
from shared.protocol.executors import EngineSpec


def test_a_message_is_of_the_type_that_it_is_read_as() -> None:
    class Small(msgspec.Struct, frozen=True):
        name: str
        size: int

    class Other(msgspec.Struct, frozen=True):
        name: str
        size: list[int]

    small = Small("a", 3)
    assert decode(encode(small), Small) == decode_record(encode_record(small), Small) == small
    assert encode_record(small) == b'{"name":"a","size":3}'
    with pytest.raises(msgspec.ValidationError, match="size"):
        decode(encode(small), Other)
    with pytest.raises(msgspec.ValidationError, match="size"):
        decode_record(encode_record(small), Other)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{", b'"\xff"', b"[" * 100_000, b"\x91" * 100_000])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    for read in (decode, decode_record):
        with pytest.raises(msgspec.DecodeError):
            read(data, EngineSpec)


def test_a_decoder_that_is_prepared_is_not_made_later() -> None:
    class Fresh(msgspec.Struct, frozen=True):
        size: int

    prepare(Fresh)
    num_made = codec._decoder.cache_info().misses
    assert decode(encode(Fresh(3)), Fresh) == Fresh(3)
    assert codec._decoder.cache_info().misses == num_made
