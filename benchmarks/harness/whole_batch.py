"""A batch from its upload to its end."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError
from loadgen.offline.batch import ENDED
from loadgen.offline.bodies import output_failures

POLL_S = 0.1


async def run_batch(client: OpenAIClient, file: Path, endpoint: str, max_failed_share: float = 0.0) -> dict[str, Any]:
    """As it is seen to be complete. Of its lines ``max_failed_share`` at most may fail, which is told on the standard
    error. Raises ServerError where more do, or the batch does not come to its end."""
    wanted = {"input_file_id": await client.upload(file), "endpoint": endpoint, "completion_window": "24h"}
    batch: dict[str, Any] = await client.post_json("/v1/batches", wanted)
    while batch["status"] not in ENDED:
        await asyncio.sleep(POLL_S)
        batch = await client.get_json(f"/v1/batches/{batch['id']}")
    counts = batch["request_counts"]
    num_failed, total = counts["total"] - counts["completed"], counts["total"]
    if num_failed or not total:
        told = f"{batch['id']} is {batch['status']}: of {total} lines {num_failed} failed{await _why(client, batch)}"
        if batch["status"] != "completed" or not total or num_failed > max_failed_share * total:
            raise ServerError(told)
        print(told, file=sys.stderr)
    return batch


async def _why(client: OpenAIClient, batch: dict[str, Any]) -> str:
    """What the first of the failed lines say."""
    if batch.get("error_file_id") is None:
        return ""
    failures = output_failures(await client.get_bytes(f"/v1/files/{batch['error_file_id']}/content"))
    return f", the first of them: {next(failures, 'did not run')}"
