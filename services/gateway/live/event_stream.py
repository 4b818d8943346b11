"""A streamed completion: server-sent events as tokens arrive, and an abort as soon as the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi import Response
from starlette.types import Receive, Scope, Send

from services.gateway.live.choices import Tracker, pieces
from services.gateway.live.generation import Generation
from shared.openai.completions.answers import Usage
from shared.openai.shown_text import ShownToken
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must pass events on at once
]


class StreamWriter(Protocol):
    """The server-sent events of one endpoint."""

    def start(self) -> bytes:
        """Before the first text; empty where nothing is."""

    def text(self, text: str, tokens: Sequence[ShownToken], index: int) -> bytes:
        """More of a choice's text; the tokens that begin in it, where logprobs were asked for. Empty where none of it
        can be shown yet."""

    def finish(self, finish_reason: FinishReason, index: int) -> bytes:
        """After the last text of a choice."""

    def end(self, usage: Usage) -> bytes:
        """After the last choice."""

    def fail(self, why: str) -> bytes:
        """Instead of what is left, ``end`` included."""


class EventStream(Response):
    """Owns the generations, one for each choice: they are closed when the stream ends, for whatever reason."""

    def __init__(
        self,
        tracker: Tracker,
        generations: Sequence[Generation],
        writer: StreamWriter,
        tokenizer: Tokenizer,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._head = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]
        self._tracker = tracker
        self._generations = generations
        self._writer = writer
        self._tokenizer = tokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(close_on_disconnect(receive, self._tracker, *self._generations))
                await send({"type": "http.response.start", "status": 200, "headers": self._head})
                start = self._writer.start()  # with the first token, since clients take the first event for it
                async with aclosing(self._events()) as events:
                    async for event in events:
                        await send({"type": "http.response.body", "body": start + event, "more_body": True})
                        start = b""
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                watcher.cancel()
        finally:
            for generation in self._generations:
                await self._tracker.close(generation)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """What one choice has more to show at a time; an error of any choice ends all."""
        writer = self._writer
        async with aclosing(pieces(self._generations, self._tokenizer)) as shown:
            async for piece in shown:
                has_more = piece.text or piece.tokens
                if has_more and (event := writer.text(piece.text, piece.tokens, piece.index)):
                    yield event
                if piece.finish_reason is FinishReason.ABORT:
                    return
                if piece.finish_reason is FinishReason.ERROR:
                    yield writer.fail(self._generations[piece.index].error)
                    return
                if piece.finish_reason is not None:
                    yield writer.finish(piece.finish_reason, piece.index)
        yield writer.end(usage_of(*self._generations))


def usage_of(first: Generation, *others: Generation) -> Usage:
    """Tokens of a request whose choices these are, all finished."""
    return Usage(
        prompt_tokens=len(first.request.prompt_token_ids),
        completion_tokens=sum(len(generation.output_token_ids) for generation in (first, *others)),
        cached_tokens=first.num_cached_tokens,
    )


async def close_on_disconnect(receive: Receive, tracker: Tracker, *generations: Generation) -> None:
    """Waits until the client is gone, then ends the generations, which wakes their readers."""
    while (await receive())["type"] != "http.disconnect":
        continue
    for generation in generations:
        await tracker.close(generation)
