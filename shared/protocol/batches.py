"""Batches and files, as the bus keeps them."""

from __future__ import annotations

import msgspec


class BatchError(msgspec.Struct, frozen=True):
    """One entry of a failed batch's ``errors.data``."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch as OpenAI shows it, and what finalization needs. Times are unix seconds."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str  # validating, in_progress, finalizing, completed, failed, expired, cancelling, cancelled
    metadata: dict[str, str] | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[BatchError] = []
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cleared: bool = False  # ended, and nothing of it is left in the streams
    output_expires_after_s: int | None = None  # of the output and the error file, from when they are written
    client_id: str = ""  # whom fairness counts it for
    client_weight: float = 1.0  # of that client, against others


class FileRecord(msgspec.Struct, frozen=True):
    """A file as OpenAI shows it. The bytes are in OBJECTS_BUCKET under the same id. Once it has expired
    it is as good as absent."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
