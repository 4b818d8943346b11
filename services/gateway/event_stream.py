"""A streamed completion: server-sent events as tokens arrive, and an abort as soon as the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Response
from starlette.types import Receive, Scope, Send

from services.gateway.errors import SERVER_ERROR
from services.gateway.generation import Generation
from services.gateway.tracker import RequestTracker
from shared.openai.responses import DONE, ChunkWriter, Usage, error_event
from shared.openai.text import visible_tokens
from shared.protocol.messages import FinishReason
from shared.tokenizer import IncrementalDetokenizer

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must pass events on at once
]


class EventStream(Response):
    """Owns the generation: it is closed when the stream ends, for whatever reason."""

    def __init__(
        self, tracker: RequestTracker, generation: Generation, writer: ChunkWriter, detokenizer: IncrementalDetokenizer
    ) -> None:
        super().__init__()
        self._tracker = tracker
        self._generation = generation
        self._writer = writer
        self._detokenizer = detokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(close_on_disconnect(receive, self._tracker, self._generation))
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                async for event in self._events():
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                watcher.cancel()
        finally:
            await self._tracker.close(self._generation)

    async def _events(self) -> AsyncIterator[bytes]:
        """One event for all the tokens that came since the one before."""
        generation, writer = self._generation, self._writer
        if start := writer.start():
            yield start
        finish_reason: FinishReason | None = None
        while finish_reason is None:
            tokens = await generation.next_tokens()
            finish_reason = generation.finish_reason
            tokens = visible_tokens(tokens, finish_reason, generation.request.sampling)
            text = self._detokenizer.push(tokens)
            if finish_reason is not None:
                text += self._detokenizer.finish()
            if self._detokenizer.stopped:
                finish_reason = FinishReason.STOP
            if text:
                yield writer.text(text)
        for event in self._last_events(finish_reason):
            yield event

    def _last_events(self, finish_reason: FinishReason) -> list[bytes]:
        if finish_reason is FinishReason.ABORT:
            return []
        if finish_reason is FinishReason.ERROR:
            return [error_event(self._generation.error, SERVER_ERROR)]
        events = [self._writer.finish(finish_reason)]
        if self._generation.request.include_usage:
            events.append(self._writer.usage(usage_of(self._generation)))
        return [*events, DONE]


def usage_of(generation: Generation) -> Usage:
    """Tokens of a finished generation."""
    return Usage(
        prompt_tokens=len(generation.request.prompt_token_ids),
        completion_tokens=len(generation.output_token_ids),
        cached_tokens=generation.num_cached_tokens,
    )


async def close_on_disconnect(receive: Receive, tracker: RequestTracker, generation: Generation) -> None:
    """Waits until the client is gone, then ends the generation, which wakes its reader."""
    while (await receive())["type"] != "http.disconnect":
        continue
    await tracker.close(generation)
