"""Token ids packed into bytes: 4 per token instead of the 36 of a list of ints, and compared at the speed of memcmp."""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

TOKEN_TYPE = "I"
TOKEN_BYTES = array(TOKEN_TYPE).itemsize
NUM_TOKEN_IDS = 1 << 8 * TOKEN_BYTES  # that can be packed
_MARKED = NUM_TOKEN_IDS >> 1  # a bit that no vocabulary comes to


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """``TOKEN_BYTES`` bytes per token, in the machine's byte order. Raises OverflowError for an id that is negative
    or does not fit."""
    return array(TOKEN_TYPE, token_ids).tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The other way round."""
    token_ids = array(TOKEN_TYPE)
    token_ids.frombytes(packed)
    return token_ids.tolist()


def marked(packed: bytes, group: str) -> bytes:
    """A packed prompt as orders compare it: with another first token for each group (``KVScope.group``), so that it
    begins as none of another group's does, and its blocks are where they were. Marked once more it is as before;
    without a group it is left as it is."""
    if not group or not packed:
        return packed
    mark = _MARKED | int.from_bytes(blake2b(group.encode(), digest_size=TOKEN_BYTES).digest(), "little")
    first = int.from_bytes(packed[:TOKEN_BYTES], sys.byteorder) ^ mark
    return first.to_bytes(TOKEN_BYTES, sys.byteorder) + packed[TOKEN_BYTES:]
