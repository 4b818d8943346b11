"""A server that is away, or full, for a moment: what it did not take goes to it again."""

import asyncio
import time
from collections.abc import Callable
from itertools import chain, repeat

from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.records import RequestRecord

PATIENCE_S = 60.0  # for a server that restarts
PAUSES_S = (0.25, 0.5, 1.0, 2.0)  # where it does not say how long; then as the last


class Patience:
    """With one server: each request goes again for PATIENCE_S, but only once where nobody could reach the server for so
    long, so that a backlog behind it has failed soon."""

    def __init__(self) -> None:
        self._unreachable_s: float | None = None  # since when

    def left_s(self, begun_s: float, record: RequestRecord) -> float:
        """For a request that was first sent then, after this record of it."""
        now_s = time.perf_counter()
        if not record.disconnected:
            self._unreachable_s = None
        elif self._unreachable_s is None:
            self._unreachable_s = now_s
        return min(begun_s, self._unreachable_s or now_s) + PATIENCE_S - now_s


async def stream_until_taken(
    client: OpenAIClient, request: StreamRequest, patience: Patience, begun: Callable[[RequestRecord], None]
) -> RequestRecord:
    """Send until the server takes it, or the patience with it ends; ``begun`` is told of the record of each time.
    Returns the last."""
    begun_s = time.perf_counter()
    for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
        record = RequestRecord(time.perf_counter())
        begun(record)
        await client.stream(request, record)
        left_s = patience.left_s(begun_s, record)
        if not record.not_taken or left_s <= 0:
            break
        record.goes_again = True
        await asyncio.sleep(min(record.retry_after_s or pause_s, left_s))
    return record
