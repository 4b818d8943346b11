"""A batch from its upload to its end."""

import asyncio
from pathlib import Path
from typing import Any

from loadgen.client.openai_client import OpenAIClient
from loadgen.offline.batch import ENDED

POLL_S = 0.1


async def run_batch(client: OpenAIClient, file: Path, endpoint: str) -> dict[str, Any]:
    """As it is seen to be complete, all of its lines among them. Raises ServerError."""
    wanted = {"input_file_id": await client.upload(file), "endpoint": endpoint, "completion_window": "24h"}
    batch: dict[str, Any] = await client.post_json("/v1/batches", wanted)
    while batch["status"] not in ENDED:
        await asyncio.sleep(POLL_S)
        batch = await client.get_json(f"/v1/batches/{batch['id']}")
    counts = batch["request_counts"]
    assert counts["completed"] == counts["total"] > 0, batch
    return batch
