"""Token ids packed into bytes: 4 per token instead of the 36 of a list of ints, and compared at the speed of memcmp."""

from array import array
from collections.abc import Sequence

TOKEN_TYPE = "I"
TOKEN_BYTES = array(TOKEN_TYPE).itemsize
NUM_TOKEN_IDS = 1 << 8 * TOKEN_BYTES  # that can be packed


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """``TOKEN_BYTES`` bytes per token, in the machine's byte order. Raises OverflowError for an id that is negative
    or does not fit."""
    return array(TOKEN_TYPE, token_ids).tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The other way round."""
    token_ids = array(TOKEN_TYPE)
    token_ids.frombytes(packed)
    return token_ids.tolist()
