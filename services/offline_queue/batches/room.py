"""What the lines of all batches may take in memory while they wait."""

PART = 16  # of a batch's share that it may have in any case
LEAST_BYTES = 64 * 1024  # or as much, where its share is as large


class PoolRoom:
    """Batches at work share it evenly. Those that were there before others came have more than their shares, and get
    nothing until they have used that up; until then the others have what is free, or a part of their shares."""

    def __init__(self, num_bytes: int) -> None:
        self.at_work: dict[str, None] = {}  # batches whose lines may be in the pool, by id
        self.held_bytes = 0  # by all of them
        self._num_bytes = num_bytes

    def of(self, held_bytes: int) -> int:
        """Bytes for a batch at work that holds so many of all that are held."""
        share = self._num_bytes // max(1, len(self.at_work))
        num_free = self._num_bytes - (self.held_bytes - held_bytes)
        return min(share, max(num_free, share // PART, LEAST_BYTES))
