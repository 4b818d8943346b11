"""Scores of prompts' tokens while their requests live on an executor, and of the blocks that its prefix cache has."""

from collections.abc import Sequence

from shared.protocol.prompt_scores import record_bytes
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.request import Kind


class PromptScoring:
    """Of one prompt: the records of its tokens from the second on, as far as they are known, without a gap."""

    def __init__(self, num_top: int, num_prompt_tokens: int, packed: bytes = b"") -> None:
        """``packed``: what is known already, in records of ``shared.protocol.prompt_scores``."""
        self.is_told = False  # to whoever waits for them
        self._record = record_bytes(num_top)
        self._num_records = max(0, num_prompt_tokens - 1)
        self._packed = bytearray(packed)

    @property
    def num_scored(self) -> int:
        """Record i is of token i + 1, and comes of what is computed of token i."""
        return len(self._packed) // self._record

    @property
    def is_complete(self) -> bool:
        return self.num_scored >= self._num_records

    def put(self, start: int, packed: bytes) -> None:
        """Records from ``start`` on, which is no more than are known; known ones are replaced."""
        assert start <= self.num_scored, "scores leave a gap"
        self._packed[start * self._record : start * self._record + len(packed)] = packed

    def get(self, start: int, end: int) -> bytes:
        """Records [start, end)."""
        return bytes(self._packed[start * self._record : end * self._record])

    @property
    def whole(self) -> bytes | None:
        """All of them, where they are complete."""
        return bytes(self._packed) if self.is_complete else None

    @property
    def untold(self) -> bytes | None:
        """``whole``, where nobody was told."""
        return None if self.is_told else self.whole

    def take(self) -> bytes | None:
        """``untold``; they are told with that."""
        untold = self.untold
        self.is_told = self.is_told or untold is not None
        return untold


class BlockScores:
    """With each block of ``scored_chain`` that the pool's prefix cache has, its scores: they are put here before the
    block can be found by a step that begins, and stay while it can."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._blocks: dict[bytes, bytes] = {}  # at most twice as many as the pool has, but for those of one step

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, scoring: PromptScoring, hashes: Sequence[bytes], start: int, packed: bytes) -> bool:
        """A step has computed the prompt from token ``start`` on, with these records. What lies before it and is not
        known was found in the cache. ``hashes``: of the prompt's blocks. False where their scores are not here."""
        self._prune()
        size = self._pool.block_size
        for index in range(scoring.num_scored // size, start // size):
            found = self._blocks.get(hashes[index])
            if found is None:
                return False
            scoring.put(index * size, found)
        if start > scoring.num_scored:
            return False
        scoring.put(start, packed)
        for index in range(start // size, min(len(hashes), scoring.num_scored // size)):
            self._blocks[hashes[index]] = scoring.get(index * size, (index + 1) * size)
        return True

    def _prune(self) -> None:
        if len(self._blocks) > 2 * self._pool.num_blocks:
            self._blocks = {key: scores for key, scores in self._blocks.items() if self._is_found(key)}

    def _is_found(self, key: bytes) -> bool:
        return any(self._pool.look_up((key,), kind).num_blocks for kind in Kind)
