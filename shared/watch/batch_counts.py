"""What became of batches and their lines, added up while somebody watches."""

from collections import Counter

from shared.protocol.offline.batches import OPEN_STATUSES, Batch, RequestCounts

FINAL_STATUSES = ("cancelled", "completed", "expired", "failed")


class BatchCounts:
    """Of batches that were seen open: those that had ended before count for nothing."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, RequestCounts]] = {}  # status and lines, by batch
        self.ended = dict.fromkeys(FINAL_STATUSES, 0)
        self.broken = 0  # of those that ended
        self.lines = {"completed": 0, "failed": 0}  # by result

    @property
    def open(self) -> dict[str, int]:
        """How many there are of each status that is not final."""
        found = Counter(status for status, _ in self._open.values())
        return {status: found[status] for status in sorted(OPEN_STATUSES)}

    def on_batch(self, batch_id: str, record: Batch | None) -> None:
        """None for one that was deleted."""
        known = self._open.pop(batch_id, None)
        if record is None:
            return
        counts = record.request_counts
        if known is not None:
            before = known[1]
            self.lines["completed"] += max(0, counts.completed - before.completed)
            self.lines["failed"] += max(0, counts.failed - before.failed)
        if record.status in OPEN_STATUSES:
            self._open[batch_id] = record.status, counts
        elif known is not None:
            self.ended[record.status] += 1
            self.broken += record.is_broken
