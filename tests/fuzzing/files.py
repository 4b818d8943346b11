"""Files as no program writes them: torn, of other versions, of other kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from tests.fuzzing.messages import mutate

RUBBISH = (b"", b"\x00" * 64, b"\xff\xfe\x00", b"null", b"[]", b'"x"', b"{", b"[" * 100_000, b"{}" * 2, b"9" * 5000)


def torn(data: bytes, random: Random, count: int) -> Iterator[bytes]:
    """Cut, with zeros where a disk had not written, with others' bytes in them."""
    for _ in range(count):
        place, size = random.randrange(len(data)), random.randrange(1, 64)
        yield random.choice(
            (
                data[:place],
                data[:place] + b"\x00" * (len(data) - place),
                data[:place] + random.randbytes(size) + data[place + size :],
                data[:place] + data[place + size :],
                data + random.randbytes(size),
            )
        )


def changed_json(data: bytes, random: Random, count: int) -> Iterator[bytes]:
    """The same JSON with one value in it of another kind, left out or doubled."""
    value = json.loads(data)
    for _ in range(count):
        yield json.dumps(mutate(value, random), default=str).encode()


def bad_files(data: bytes, random: Random, count: int, is_json: bool = False) -> list[bytes]:
    """All of those."""
    changed = changed_json(data, random, count) if is_json else ()
    return [*RUBBISH, *torn(data, random, count), *changed]
