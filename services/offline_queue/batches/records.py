"""A batch's states, and the changes of its record that each allows.

    validating -> in_progress -> finalizing -> completed
    validating -> failed
    validating | in_progress -> expired
    finalizing -> in_progress, where the store has lost a result that no file has
    validating | in_progress -> cancelling (by the gateway) -> cancelled

Where the store loses a change of the record, since its machine had no power, it is in the state before again.

Each function here makes a change for ``Bucket.edit``: it looks at the record as it is at the moment of the write, and
leaves one alone whose status does not allow the change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass
from typing import Any

from msgspec.structs import replace

from shared.protocol.access.key_usage import KeyUsage, key_name_of
from shared.protocol.offline.batches import (
    OPEN_STATUSES,
    SERVER_ERROR,
    BatchRecord,
    LineError,
    LineErrors,
    RequestCounts,
    Usage,
)

Change = Callable[[BatchRecord], BatchRecord]

# The state that work ended in -> the last.
ENDING = {"finalizing": "completed", "cancelling": "cancelled", "in_progress": "expired"}


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Requests that have a result, and the tokens of the completed ones."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def fields(self, total: int) -> dict[str, Any]:
        """Of the record of a batch of ``total`` lines."""
        usage = Usage.of(self.input_tokens, self.cached_tokens, self.output_tokens)
        return {"request_counts": RequestCounts(total, self.completed, self.failed), "usage": usage}


def started(total: int, queued_tokens: int, model: str | None, now_s: int) -> Change:
    """validating -> in_progress, once every line is stored."""
    fields: dict[str, Any] = {"request_counts": RequestCounts(total), "queued_tokens": queued_tokens, "model": model}
    return _where({"validating"}, status="in_progress", in_progress_at=now_s, **fields)


def begun_as(known: BatchRecord) -> Change:
    """validating -> in_progress, as ``started`` made it: its lines are stored, and its input may be deleted since."""
    if known.in_progress_at is None:
        return lambda record: record
    return started(known.request_counts.total, known.queued_tokens, known.model, known.in_progress_at)


def failed(errors: list[LineError], now_s: int) -> Change:
    """validating -> failed."""
    return _where({"validating"}, status="failed", errors=LineErrors(errors), failed_at=now_s)


def expired(now_s: int) -> Change:
    """validating -> expired: its lines could not be stored in time."""
    return _where({"validating"}, status="expired", expired_at=now_s)


def broken(why: str, output_file_id: str | None, error_file_id: str | None, now_s: int) -> Change:
    """Any state that is not final -> failed, with those files that have lines: the server cannot go on."""
    errors = LineErrors([LineError(SERVER_ERROR, why)])
    fields = {"output_file_id": output_file_id, "error_file_id": error_file_id, "errors": errors}
    return _where(OPEN_STATUSES, None, status="failed", failed_at=now_s, **fields)


def progressed(counts: BatchCounts, queued_tokens: int) -> Change:
    """The counts so far, while the batch is at work, and the tokens of what is left."""
    return _where({"in_progress", "cancelling"}, counts, queued_tokens=queued_tokens)


def finalizing(counts: BatchCounts, now_s: int) -> Change:
    """in_progress -> finalizing, once every line has its result."""
    return _where({"in_progress"}, counts, status="finalizing", finalizing_at=now_s, queued_tokens=0)


def reopened(record: BatchRecord) -> BatchRecord:
    """finalizing -> in_progress: there is a line without a result again."""
    return _where({"finalizing"}, status="in_progress", finalizing_at=None)(record)


def ended(
    status: str, counts: BatchCounts, output_file_id: str | None, error_file_id: str | None, now_s: int
) -> Change:
    """finalizing -> completed, in_progress -> expired, cancelling -> cancelled, with those files that have lines: from
    the ``status`` that its work ended in, or cancelling, which it may be since."""
    files = {"output_file_id": output_file_id, "error_file_id": error_file_id}

    def change(record: BatchRecord) -> BatchRecord:
        last = ENDING.get(record.status, "")
        return _where({status, "cancelling"}, counts, status=last, **files, **{f"{last}_at": now_s})(record)

    return change


def cancelling(now_s: int) -> Change:
    """validating | in_progress -> cancelling, where the store has lost that it was."""
    return _where({"validating", "in_progress"}, status="cancelling", cancelling_at=now_s)


def cleared(record: BatchRecord) -> BatchRecord:
    """Ended, and nothing of it is left in the streams."""
    return record if record.status in OPEN_STATUSES else replace(record, cleared=True)


def counted(change: Change, day: str) -> Change:
    """The change, with the tokens that it adds, of a key's batch, as used on this day: in the same write, so that each
    is counted once, whatever breaks."""

    def change_and_count(record: BatchRecord) -> BatchRecord:
        changed = change(record)
        used = _used(changed) - _used(record)
        if used == KeyUsage() or key_name_of(record.client_id) is None:
            return changed
        so_far = record.usage_by_day.get(day, KeyUsage())
        return replace(changed, usage_by_day={**record.usage_by_day, day: so_far + used})

    return change_and_count


def _used(record: BatchRecord) -> KeyUsage:
    usage = record.usage
    cached = usage.input_tokens_details.cached_tokens
    return KeyUsage(record.request_counts.completed, usage.input_tokens, cached, usage.output_tokens)


def _where(statuses: Collection[str], counts: BatchCounts | None = None, **fields: Any) -> Change:
    """These fields, and what the counts make of others, in a record that has one of the statuses."""

    def change(record: BatchRecord) -> BatchRecord:
        if record.status not in statuses:
            return record
        return replace(record, **fields, **({} if counts is None else counts.fields(record.request_counts.total)))

    return change
