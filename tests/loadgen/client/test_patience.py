"""Requests that go again to a server that does not take them."""

from typing import cast

import pytest

from loadgen.client import patience
from loadgen.client.openai_client import OpenAIClient, StreamRequest
from loadgen.client.patience import Patience, stream_until_taken
from loadgen.client.records import RequestRecord


class Full:
    """Says for each request that it may come again in an hour."""

    async def stream(self, request: StreamRequest, record: RequestRecord) -> None:
        record.status, record.error, record.retry_after_s = 503, "503: full", 3600.0


async def test_nobody_waits_longer_than_its_patience_whatever_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.05)
    begun: list[RequestRecord] = []
    request = StreamRequest("/v1/completions", b"")
    last = await stream_until_taken(cast(OpenAIClient, Full()), request, Patience(), begun.append)
    assert begun[-1] is last and last.not_taken
    assert len(begun) > 1
