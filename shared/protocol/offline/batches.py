"""Batches, what they took and files, as the bus keeps them and OpenAI's clients see them. Times are unix seconds."""

from typing import Literal, Self

import msgspec

from shared.bounds import MOST, Day, KeyPart, Weight
from shared.protocol.access.key_usage import KeyUsage

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
# The others are final.
OPEN_STATUSES: frozenset[BatchStatus] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
SERVER_ERROR = "server_error"  # the code of an error that is not the file's
WITHDRAWN = "withdrawn"  # the claim of a batch whose creation was answered with an error: clients do not see it


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with an input file, and in which line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineErrors(msgspec.Struct, frozen=True):
    """Why a batch has failed: up to 100."""

    data: list[LineError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """Of a batch's lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def done(self) -> int:
        return self.completed + self.failed

    @property
    def left(self) -> int:
        return self.total - self.done


class InputTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` came from the prefix cache; nothing is written to it at an extra price."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """What a model thinks is output as any other, and not counted apart."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one response, or of a batch so far."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, input_tokens: int, cached_tokens: int, output_tokens: int) -> Self:
        """``cached_tokens``: of the input."""
        details = InputTokensDetails(cached_tokens), OutputTokensDetails()
        return cls(input_tokens, details[0], output_tokens, details[1], input_tokens + output_tokens)


class Batch(msgspec.Struct, frozen=True):
    """A batch; what has not happened yet is null."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: BatchStatus
    object: Literal["batch"] = "batch"
    metadata: dict[str, str] | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: LineErrors | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: Usage = Usage.of(0, 0, 0)

    @property
    def is_broken(self) -> bool:
        """It failed, and not for what is in its file: the server could not go on."""
        return self.errors is not None and any(error.code == SERVER_ERROR for error in self.errors.data)


class BatchRecord(Batch, frozen=True):
    """With what only services know of it. Raises ValueError for numbers that nobody can reckon with."""

    model_name: str = ""  # whose it is, by the name in the stack; empty in records of versions with one model
    adapter: str = ""  # of the model, that its lines are for, by its name; empty: the model as it is
    cleared: bool = False  # ended, and nothing of it is left in the streams
    output_expires_after_s: int | None = None  # of the output and the error file, from when they are written
    client_id: KeyPart = ""  # whom fairness counts it for
    client_weight: Weight = 1.0  # of that client, against others
    usage_by_day: dict[Day, KeyUsage] = {}  # of a key's batch; a day as day_of writes it
    claim: str = ""  # of the request that made it; empty once one was answered with it again, or WITHDRAWN
    owner: str = ""  # whose it is, with its files: see owner_of
    kv_owner: str = ""  # as of SamplingParams, of its requests
    traceparent: str = ""  # W3C trace context of the request that created it; empty where it is not traced
    queued_tokens: int = 0  # prompts and longest answers of its requests without a result, while it is at work

    def __post_init__(self) -> None:
        ends = self.completed_at, self.failed_at, self.expired_at, self.cancelled_at
        counts = self.request_counts.total, self.request_counts.completed, self.request_counts.failed
        lengths = self.output_expires_after_s, self.queued_tokens
        _require_sizes(self.created_at, self.expires_at, *ends, *counts, *lengths)

    @property
    def is_withdrawn(self) -> bool:
        return self.claim == WITHDRAWN


class BatchKey(msgspec.Struct, frozen=True):
    """The batch that an Idempotency-Key of its owner stands for. It may not be there yet, or be gone."""

    batch_id: str
    created_at: int


class FileObject(msgspec.Struct, frozen=True):
    """``purpose``: batch, or batch_output where a batch has written it. ``bytes`` is its size; they are in
    OBJECTS_BUCKET under the same id. Once it has expired it is as good as absent."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileRecord(FileObject, frozen=True):
    """With what only services know of it. Raises ValueError as BatchRecord."""

    owner: str = ""  # whose it is: see owner_of

    def __post_init__(self) -> None:
        _require_sizes(self.bytes, self.created_at, self.expires_at)


def _require_sizes(*numbers: int | None) -> None:
    """Raises ValueError."""
    if not all(each is None or -MOST <= each <= MOST for each in numbers):
        raise ValueError("a number is beyond all measure")
