"""Batches as clients of the API know them: what belongs together, and how they ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

from services.local.commands.server import ApiClient, Json
from shared.errors import ApiError

# In the metadata of batches that this command line makes.
JOB = "slackwater_job"  # the id of all batches that one file of rows was cut into
PART, PARTS, DIGEST = "slackwater_part", "slackwater_parts", "slackwater_digest"
FIRST_ROW, NUM_ROWS = "slackwater_first_row", "slackwater_rows"
RETRY_OF = "slackwater_retry_of"  # whose unanswered lines a batch runs again
JOB_ID = re.compile(r"job_[0-9a-f]{24}")
JOB_PREFIX, TIME_DIGITS = "job_", 12  # of new_id

EXIT_OF = {"completed": 3, "failed": 4, "expired": 5, "cancelled": 6}  # where not every line is done
WORST_FIRST = ("failed", "expired", "cancelled", "completed")
PAGE = 100
FIELDS = ("id", "status", "created_at")  # that every batch has
CLOCK_SKEW_S = 24 * 3600  # between the one who names a job and the server


def counts_of(batch: Json) -> dict[str, int]:
    """With ``left``: those that have not run, or never will where the batch has ended."""
    counts = {"total": 0, "completed": 0, "failed": 0, **(batch.get("request_counts") or {})}
    return {**counts, "left": counts["total"] - counts["completed"] - counts["failed"]}


def metadata_of(batch: Json) -> dict[str, str]:
    return batch.get("metadata") or {}


def has_ended(batch: Json) -> bool:
    return batch["status"] in EXIT_OF


def is_whole(batch: Json) -> bool:
    """Every line is done."""
    return batch["status"] == "completed" and not counts_of(batch)["failed"]


def exit_status_of(batches: list[Json]) -> int:
    """Of the worst of these, which have ended."""
    statuses = {batch["status"] for batch in batches if not is_whole(batch)}
    return next((EXIT_OF[status] for status in WORST_FIRST if status in statuses), 0)


def batches_of(client: ApiClient, id: str) -> list[Json]:
    """The batch of the id, or those of a job in the order of their rows. Raises ApiError where there is none."""
    if not id.startswith(JOB_PREFIX):
        return [client.get(f"/v1/batches/{id}", needs=FIELDS)]
    parts = parts_of(client, id) if JOB_ID.fullmatch(id) else {}
    if not parts:
        raise ApiError(f"no such job: {id}")
    return [parts[number] for number in sorted(parts)]


def whole_job(client: ApiClient, id: str) -> list[Json]:
    """As ``batches_of``. Raises ApiError too where parts of a job have not been submitted."""
    batches = batches_of(client, id)
    if id.startswith(JOB_PREFIX):
        num_parts = int(metadata_of(batches[0])[PARTS])
        if len(batches) < num_parts:
            missing = f"{len(batches)} of the {num_parts} batches of {id} are there"
            raise ApiError(f"{missing}; submit the rest: slackwater batch submit FILE ... --resume {id}")
    return batches


def parts_of(client: ApiClient, job_id: str) -> dict[int, Json]:
    """Of a job, by number; what has been submitted so far. Raises ApiError."""
    parts: dict[int, Json] = {}
    named_s = int(job_id.removeprefix(JOB_PREFIX)[:TIME_DIGITS] or "0", 16) // 1000
    for batch in _since(client, named_s - CLOCK_SKEW_S):
        metadata = metadata_of(batch)
        if metadata.get(JOB) == job_id and RETRY_OF not in metadata:
            parts[int(metadata[PART])] = batch
            if len(parts) == int(metadata[PARTS]):
                break
    return parts


def with_retries(client: ApiClient, batch: Json) -> list[Json]:
    """The batch, the batches that ran unanswered lines of it again, and those of these; the oldest first."""
    retries = [each for each in _since(client, batch["created_at"]) if RETRY_OF in metadata_of(each)]
    chain = {batch["id"]: batch}
    for each in reversed(retries):  # a retry is younger than what it retries
        if metadata_of(each)[RETRY_OF] in chain:
            chain[each["id"]] = each
    return list(chain.values())


def describe_end(batch: Json, max_errors: int) -> str:
    """Of one that has ended: what is done and what is not, and its first errors."""
    counts = counts_of(batch)
    figures = [f"{counts['completed']:,} of {counts['total']:,} lines are done", *not_done(batch)]
    errors = errors_of(batch)[:max_errors]
    lines = [f"  {_place_of(error)}{error['message']}" for error in errors]
    return "\n".join([f"batch {batch['id']} is {batch['status']}: {', '.join(figures)}", *lines])


def _place_of(error: Json) -> str:
    return f"line {error['line']}: " if error.get("line") else ""


def errors_of(batch: Json) -> list[Json]:
    """Why it has failed."""
    errors: list[Json] = (batch.get("errors") or {}).get("data") or []
    return errors


def not_done(batch: Json) -> list[str]:
    """How many lines have failed, and how many of a cancelled or expired batch have never run."""
    counts, status = counts_of(batch), batch["status"]
    never_run = counts["left"] if status in ("cancelled", "expired") else 0
    return [f"{number:,} {what}" for number, what in ((counts["failed"], "failed"), (never_run, status)) if number]


def _since(client: ApiClient, created_s: int) -> Iterator[Json]:
    """All batches from that second on, the newest first."""
    for batch in client.pages("/v1/batches", PAGE):
        if batch["created_at"] < created_s:
            return
        yield batch
