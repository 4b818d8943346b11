"""A server that is away, or full, for a moment: what it did not take goes to it again."""

import asyncio
import time
from collections.abc import Callable
from itertools import chain, repeat

from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.records import RequestRecord

PATIENCE_S = 60.0  # for a server that restarts
PAUSES_S = (0.25, 0.5, 1.0, 2.0)  # where it does not say how long; then as the last


async def stream_until_taken(
    client: OpenAIClient, request: StreamRequest, begun: Callable[[RequestRecord], None] = lambda _: None
) -> RequestRecord:
    """Send until the server takes it, or for PATIENCE_S; ``begun`` is told of the record of each time. Returns the
    last."""
    begun_s = time.perf_counter()
    for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
        record = RequestRecord(time.perf_counter())
        begun(record)
        await client.stream(request, record)
        left_s = begun_s + PATIENCE_S - time.perf_counter()
        if not record.not_taken or left_s <= 0:
            break
        record.goes_again = True
        await asyncio.sleep(min(record.retry_after_s or pause_s, left_s))
    return record
