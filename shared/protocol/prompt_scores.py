"""How probable a model found the tokens of a prompt, each after those before it: packed, since a prompt has many.

One record for each token from the second on, one behind the other, little-endian: the token's log probability
(float32), its rank among all tokens (from 1, int32), the ids of the most probable tokens (int32 each), the greatest
first, and their log probabilities (float32 each). How many of these is the sampling's ``prompt_logprobs``.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

VALUE_BYTES = 4


class PromptScore(NamedTuple):
    """Of one token. Natural logarithms."""

    logprob: float
    rank: int
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def record_bytes(num_top: int) -> int:
    """Of one token, with so many of the most probable ones."""
    return VALUE_BYTES * (2 + 2 * num_top)


def pack_scores(scores: list[PromptScore]) -> bytes:
    """``unpack_scores`` the other way round; all have as many most probable tokens."""
    return b"".join(
        _record(len(each.top_token_ids)).pack(each.logprob, each.rank, *each.top_token_ids, *each.top_logprobs)
        for each in scores
    )


def unpack_scores(packed: bytes, num_top: int) -> Iterator[PromptScore]:
    """Of the prompt's tokens from the second on."""
    middle = 2 + num_top
    for values in _record(num_top).iter_unpack(packed):
        yield PromptScore(values[0], values[1], values[2:middle], values[middle:])


@cache
def _record(num_top: int) -> struct.Struct:
    return struct.Struct(f"<fi{num_top}i{num_top}f")
