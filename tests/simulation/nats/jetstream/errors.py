"""JetStream's errors, by the names that nats-server gives them."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ApiError(Exception):
    """(HTTP-like code, JetStream's own, what is told)"""

    code: int
    err_code: int
    description: str

    def forgotten(self) -> Self:
        """Where it was raised: one that is raised again and again would keep every frame of every time."""
        return self.with_traceback(None)

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


BAD_REQUEST = ApiError(400, 10003, "bad request")
BAD_JSON = ApiError(400, 10025, "invalid JSON")
CONSUMER_NOT_FOUND = ApiError(404, 10014, "consumer not found")
CONSUMER_EXISTS = ApiError(400, 10148, "consumer already exists")
MAXIMUM_CONSUMERS = ApiError(400, 10026, "maximum consumers limit reached")
NO_MESSAGE = ApiError(404, 10037, "no message found")
STREAM_DIFFERS = ApiError(400, 10058, "stream name already in use with a different configuration")
STREAM_NOT_FOUND = ApiError(404, 10059, "stream not found")
STREAM_NAME_DIFFERS = ApiError(400, 10056, "stream name in subject does not match request")
SUBJECTS_OVERLAP = ApiError(400, 10065, "subjects overlap with an existing stream")
STREAM_DOES_NOT_MATCH = ApiError(400, 10060, "expected stream does not match")
MESSAGE_TOO_LARGE = ApiError(400, 10054, "message size exceeds maximum allowed")
STREAM_SEALED = ApiError(400, 10109, "invalid operation on sealed stream")
TTL_DISABLED = ApiError(400, 10166, "per-message TTL is disabled")
TTL_INVALID = ApiError(400, 10165, "invalid per-message TTL")
NO_START_SEQUENCE = ApiError(
    400, 10094, "consumer delivery policy is deliver by start sequence, but optional start sequence is not set"
)
FILTER_IS_NO_SUBSET = ApiError(400, 10093, "consumer filter subject is not a valid subset of the interest subjects")


def wrong_last_sequence(sequence: int) -> ApiError:
    return ApiError(400, 10071, f"wrong last sequence: {sequence}")


def wrong_last_message_id(message_id: str) -> ApiError:
    return ApiError(400, 10070, f"wrong last msg ID: {message_id}")


def rollup_failed(why: str) -> ApiError:
    return ApiError(500, 10111, why)


def store_failed(why: str) -> ApiError:
    return ApiError(503, 10077, why)


def delete_failed(why: str) -> ApiError:
    return ApiError(500, 10057, why)


def purge_failed(why: str) -> ApiError:
    return ApiError(500, 10110, why)


def no_sequence(sequence: int) -> ApiError:
    return ApiError(400, 10043, f"sequence {sequence} not found")
