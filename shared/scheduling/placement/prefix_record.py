"""Which beginnings of prompts an executor's prefix cache should hold, as whoever sends it prompts can tell."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from shared.scheduling.orders.packed_prompt import TOKEN_BYTES, pack_tokens

BLOCK_TOKENS = 32  # prompts are told apart by blocks of so many; a prefill of less is not worth a detour


@dataclass(frozen=True, slots=True)
class Prompt:
    """``blocks``: for each full block of BLOCK_TOKENS, a hash of its tokens and of everything before them."""

    num_tokens: int
    blocks: Sequence[bytes]

    @classmethod
    def of(cls, token_ids: Sequence[int]) -> Prompt:
        """One pass over the tokens."""
        packed, block_bytes = pack_tokens(token_ids), BLOCK_TOKENS * TOKEN_BYTES
        hasher, blocks = blake2b(digest_size=8), []
        for end in range(block_bytes, len(packed) + 1, block_bytes):
            hasher.update(packed[end - block_bytes : end])
            blocks.append(hasher.digest())
        return cls(len(token_ids), blocks)


class PrefixRecord:
    """The last ``max_blocks`` blocks that were sent, or 0 to keep none.

    A block is forgotten before those that it follows, so what is known of a prompt is always its beginning, and how
    long that is takes a bisection.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()  # least recently sent first; later blocks before earlier

    def __len__(self) -> int:
        return len(self._known)

    def num_cached_tokens(self, prompt: Prompt) -> int:
        """How much of the prompt's beginning should be there; its last token has to be computed in any case."""
        blocks, known = prompt.blocks, self._known
        num_known = bisect_left(range(len(blocks)), True, key=lambda index: blocks[index] not in known)
        return max(0, min(num_known * BLOCK_TOKENS, prompt.num_tokens - 1))

    def add(self, prompt: Prompt) -> None:
        """It is sent there."""
        for block in reversed(prompt.blocks[: self._max_blocks]):
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > self._max_blocks:
            self._known.popitem(last=False)
