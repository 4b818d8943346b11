"""A batch's states, and the changes of its record that each allows.

    validating -> in_progress -> finalizing -> completed
    validating -> failed
    in_progress -> expired
    validating | in_progress -> cancelling (by the gateway) -> cancelled

Each function here makes a change for ``Bucket.edit``: it looks at the record as it is at the moment of the write, and
leaves one alone whose status does not allow the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from shared.protocol.batches import BatchRecord, LineError, LineErrors, RequestCounts
from shared.protocol.usage import Usage

Change = Callable[[BatchRecord], BatchRecord]

VALIDATING = "validating"
IN_PROGRESS = "in_progress"
FINALIZING = "finalizing"
COMPLETED = "completed"
FAILED = "failed"
EXPIRED = "expired"
CANCELLING = "cancelling"
CANCELLED = "cancelled"

FINAL = frozenset({COMPLETED, FAILED, EXPIRED, CANCELLED})
ENDING = {
    FINALIZING: COMPLETED,
    CANCELLING: CANCELLED,
    IN_PROGRESS: EXPIRED,
}  # the state that work ended in -> the last


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Requests that have a result, and the tokens of the completed ones."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """What finalization wrote. A file without lines does not exist."""

    output_file_id: str | None
    error_file_id: str | None
    counts: BatchCounts


def was_ingested(record: BatchRecord) -> bool:
    """All its lines are stored; before that, nothing of it counts."""
    return record.in_progress_at is not None


def started(total: int, model: str, now_s: int) -> Change:
    """validating -> in_progress, once every line is stored."""

    def change(record: BatchRecord) -> BatchRecord:
        if record.status != VALIDATING:
            return record
        counts = RequestCounts(total)
        return replace(record, status=IN_PROGRESS, request_counts=counts, model=model, in_progress_at=now_s)

    return change


def failed(errors: list[LineError], now_s: int) -> Change:
    """validating -> failed."""

    def change(record: BatchRecord) -> BatchRecord:
        if record.status != VALIDATING:
            return record
        return replace(record, status=FAILED, errors=LineErrors(errors), failed_at=now_s)

    return change


def lost(now_s: int) -> Change:
    """Any state that is not final -> failed: the store lost what the batch needs to go on."""
    error = LineError("server_error", "The stored data of this batch is lost. Submit it again.")

    def change(record: BatchRecord) -> BatchRecord:
        if record.status in FINAL:
            return record
        return replace(record, status=FAILED, errors=LineErrors([error]), failed_at=now_s)

    return change


def progressed(counts: BatchCounts) -> Change:
    """The counts so far, while the batch is at work."""

    def change(record: BatchRecord) -> BatchRecord:
        return _with_counts(record, counts) if record.status in (IN_PROGRESS, CANCELLING) else record

    return change


def finalizing(counts: BatchCounts, now_s: int) -> Change:
    """in_progress -> finalizing, once every line has its result."""

    def change(record: BatchRecord) -> BatchRecord:
        if record.status != IN_PROGRESS:
            return record
        return replace(_with_counts(record, counts), status=FINALIZING, finalizing_at=now_s)

    return change


def ended(output: BatchOutput, now_s: int) -> Change:
    """finalizing -> completed, in_progress -> expired, cancelling -> cancelled, with the files that were written."""

    def change(record: BatchRecord) -> BatchRecord:
        if record.status not in ENDING:
            return record
        status = ENDING[record.status]
        return replace(
            _with_counts(record, output.counts),
            status=status,
            output_file_id=output.output_file_id,
            error_file_id=output.error_file_id,
            completed_at=now_s if status == COMPLETED else None,
            expired_at=now_s if status == EXPIRED else None,
            cancelled_at=now_s if status == CANCELLED else None,
        )

    return change


def cleared(record: BatchRecord) -> BatchRecord:
    """Ended, and nothing of it is left in the streams."""
    return replace(record, cleared=True) if record.status in FINAL else record


def _with_counts(record: BatchRecord, counts: BatchCounts) -> BatchRecord:
    return replace(
        record,
        request_counts=RequestCounts(record.request_counts.total, counts.completed, counts.failed),
        usage=Usage.of(counts.input_tokens, counts.cached_tokens, counts.output_tokens),
    )
