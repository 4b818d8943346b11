"""How many offline requests will read each block of an executor's KV, as its scheduler tells it with plans."""

from collections.abc import Iterable, Sequence

from shared.scheduling.kv.block_hash import split_hashes
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.request import Kind


class BlockReaders:
    """Rc of Echo (section 4.2), for the pool's eviction. Counts are of contents, in a block or not yet: what a request
    reads that is held here, and what can be found. Others are forgotten from time to time, so that no more are kept
    than a few times the blocks that there are. A count that is wrong costs time, nothing else.

    Between two words of the scheduler a request that ends is a reader less of what it has read.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self.has_gap = False  # in what was told
        self._last: tuple[float, int] | None = None  # since when, and the number of the word that came last
        self._counts: dict[bytes, int] = {}  # by hash; 0 is left out
        self._read: dict[str, Sequence[bytes]] = {}  # what requests read that are held, by their ids
        self._most_counts = 2 * pool.num_blocks

    def __len__(self) -> int:
        """Contents of which something is known."""
        return len(self._counts)

    def follow(self, since_s: float, number: int) -> None:
        """A word comes, the ``number``-th since then, or that one once more. Where all is told anew, what was told
        before is forgotten."""
        last_s, last = self._last or (None, 0)
        if last_s != since_s:
            self._set(list(self._counts), 0)
            self._read.clear()
            self.has_gap, last = False, -1
        self.has_gap = self.has_gap or number not in (last, last + 1)
        self._last = since_s, number

    def enter(self, request_id: str, hashes: Sequence[bytes], runs: Sequence[tuple[int, int]]) -> None:
        """A request is admitted. ``hashes``: of its full blocks; ``runs``: (end, readers) of its blocks up to each end,
        in order."""
        start = 0
        for end, num_readers in runs:
            self._set(hashes[start:end], num_readers)
            start = end
        self._read[request_id] = hashes[:start]
        self._forget()

    def change(self, changes: Iterable[tuple[bytes, int]]) -> None:
        """``changes``: hashes, one behind the other, and the readers of each."""
        for packed, num_readers in changes:
            self._set(split_hashes(packed), num_readers)

    def leave(self, request_id: str, has_read: bool) -> None:
        """A request is not held any more; a known one that ``has_read`` what it was to read does so no more."""
        hashes = self._read.pop(request_id, ())
        for key in hashes if has_read else ():
            count = self._counts.get(key, 0)
            if count:
                self._set((key,), count - 1)

    def _set(self, hashes: Iterable[bytes], num_readers: int) -> None:
        counts, tell = self._counts, self._pool.eviction.count_readers
        for key in hashes:
            if counts.get(key, 0) == num_readers:
                continue
            if num_readers:
                counts[key] = num_readers
            else:
                del counts[key]
            tell(key, num_readers)

    def _forget(self) -> None:
        """What is neither read by who is held nor found, where there are many; seldom enough to cost little a count."""
        if len(self._counts) <= self._most_counts:
            return
        read = {key for hashes in self._read.values() for key in hashes}  # membership only, never iterated
        find = self._pool.look_up
        gone = [key for key in self._counts if key not in read and not find((key,), Kind.OFFLINE).num_blocks]
        self._set(gone, 0)
        self._most_counts = 2 * max(self._pool.num_blocks, len(self._counts))
