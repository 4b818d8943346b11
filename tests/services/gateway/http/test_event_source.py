"""What is left of a stream once its client has gone."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message

from services.gateway.http.event_source import EventSource


@asynccontextmanager
async def nothing() -> AsyncGenerator[None, None]:
    yield


async def events() -> AsyncGenerator[bytes, None]:
    while True:
        yield b"data: x\n\n"


async def stream_to_one_who_leaves(comment_s: float) -> None:
    """In the middle of a write."""
    has_left, num_sent = asyncio.Event(), 0

    async def receive() -> Message:
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent == 5:
            has_left.set()
            await asyncio.Event().wait()

    await EventSource(events(), nothing(), comment_s=comment_s)({"type": "http"}, receive, send)
    assert num_sent == 5


@pytest.mark.parametrize("comment_s", [0.0, 15.0])
async def test_of_a_stream_that_was_left_nothing_waits_for_a_collection(comment_s: float) -> None:
    """One that is in a circle keeps what was not written, some 64 KB, until all memory is looked at."""
    await stream_to_one_who_leaves(comment_s)
    gc.collect()
    gc.disable()
    try:
        await stream_to_one_who_leaves(comment_s)
        await asyncio.sleep(0)
        assert gc.collect() == 0
    finally:
        gc.enable()
