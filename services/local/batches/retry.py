"""The lines of a batch that failed, expired or were cancelled, run again as a batch of their own."""

from __future__ import annotations

from services.local.batches.batch import DIGEST, RETRY_OF, errors_of, has_ended, metadata_of
from services.local.batches.results import unanswered
from services.local.batches.spool import temporary_file
from services.local.batches.submission import Submission
from services.local.commands.server import Json
from shared.errors import ApiError

SERVER_ERROR = "server_error"  # of a batch whose requests are good, and which the server could not go on with


def retry_unanswered(submission: Submission, chain: list[Json]) -> list[Json]:
    """The new batch of the lines that have no answer in the batch and its retries (``chain``); none where each has one.
    Raises ApiError, also where one of them is still at work, or the requests were refused as a whole."""
    batch = chain[0]
    for each in chain:
        if not has_ended(each):
            again = f"slackwater batch wait {each['id']}"
            raise ApiError(f"batch {each['id']} is {each['status']}; wait for its end: {again}")
    refused = [error for error in errors_of(batch) if error.get("code") != SERVER_ERROR]
    if refused:
        why = f"its input was refused: {refused[0]['message']}"
        raise ApiError(f"batch {batch['id']} would fail again, since {why}; mend that and submit it anew")
    with temporary_file() as spool:
        num_lines = 0
        for line in unanswered(submission.client, chain):
            spool.write(line)
            num_lines += 1
        if not num_lines:
            return []
        kept = {key: value for key, value in metadata_of(batch).items() if key != DIGEST}  # of all its lines
        metadata = kept | submission.metadata | {RETRY_OF: batch["id"]}
        return [submission.file(spool, f"{batch['id']}-retry.jsonl", metadata)]
