"""A prompt that is to be sent somewhere, and what of it an executor's prefix cache could have."""

from collections.abc import Sequence

from shared.scheduling.kv.block_hash import PLAIN, KVScope, prompt_chain


class Prompt:
    """``token_ids`` are not to be changed."""

    def __init__(self, token_ids: Sequence[int], scope: KVScope = PLAIN) -> None:
        self._scope = scope
        self.num_tokens = len(token_ids)
        self._token_ids = token_ids
        self._hashes: dict[int, list[bytes]] = {}  # by block size

    def hashes(self, block_size: int) -> list[bytes]:
        """Of its leading full blocks, but for one that holds its last token, which is computed in any case."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            max_blocks = max(0, self.num_tokens - 1) // block_size
            hashes = self._hashes[block_size] = prompt_chain(self._token_ids, block_size, self._scope, max_blocks)
        return hashes


class SentPrompts:
    """Blocks of prompts that were sent to an executor and that it has not computed yet: it will have them before any
    prompt that is sent there from here on."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}  # prompts that have the block

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, hashes: Sequence[bytes]) -> None:
        """One more prompt."""
        for key in hashes:
            self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, hashes: Sequence[bytes]) -> None:
        """A prompt that was added is computed, or will not be."""
        for key in hashes:
            if self._counts[key] == 1:
                del self._counts[key]
            else:
                self._counts[key] -= 1

    def num_leading(self, hashes: Sequence[bytes]) -> int:
        """Blocks at the beginning of a prompt that are among them."""
        return len(list(iter(map(self._counts.get, hashes).__next__, None)))  # up to the first None
