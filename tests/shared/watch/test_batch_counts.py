"""What is counted of batches that change, end and go."""

import msgspec

from shared.protocol.offline.batches import SERVER_ERROR, Batch, BatchStatus, LineError, LineErrors, RequestCounts
from shared.watch.batch_counts import BatchCounts


def batch(status: BatchStatus, completed: int = 0, failed: int = 0) -> Batch:
    counts = RequestCounts(10, completed, failed)
    return Batch("batch-1", "/v1/completions", "file-1", "24h", 0, 0, status, request_counts=counts)


def test_lines_and_ends_are_counted_from_the_first_sight_on() -> None:
    counts = BatchCounts()
    counts.on_batch("a", batch("in_progress", 3, 1))
    counts.on_batch("b", batch("validating"))
    counts.on_batch("old", batch("completed", 10))
    assert counts.open == {"cancelling": 0, "finalizing": 0, "in_progress": 1, "validating": 1}
    assert not any(counts.ended.values())
    counts.on_batch("a", batch("in_progress", 5, 1))
    counts.on_batch("a", batch("completed", 8, 2))
    counts.on_batch("a", batch("completed", 8, 2))
    counts.on_batch("b", batch("failed"))
    assert not any(counts.open.values()) and counts.ended == {"cancelled": 0, "completed": 1, "expired": 0, "failed": 1}
    assert counts.lines == {"completed": 5, "failed": 1}
    counts.on_batch("b", None)
    assert counts.ended["failed"] == 1


def test_one_that_the_server_could_not_go_on_with_is_told_from_one_with_a_bad_file() -> None:
    counts = BatchCounts()
    for batch_id, code in (("a", "invalid_json"), ("b", SERVER_ERROR)):
        counts.on_batch(batch_id, batch("validating"))
        errors = LineErrors([LineError(code, "why")])
        counts.on_batch(batch_id, msgspec.structs.replace(batch("failed"), errors=errors))
    assert (counts.ended["failed"], counts.broken) == (2, 1)
