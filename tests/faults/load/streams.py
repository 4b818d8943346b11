"""Online and flex requests, streamed or whole, whose right answers are known; some clients leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx

from tests.checker.answers import answer_end, answer_text, whole_answer
from tests.checker.history import Ended, Piece, Stream
from tests.faults.load.client import Clients
from tests.faults.load.questions import Question, Questions

CONNECT_S = 5.0
DONE = "[DONE]"
REFUSALS = frozenset({429, 503})
FLEX_SHARE, WHOLE_SHARE, LEAVING_SHARE = 0.2, 0.15, 0.1
REST_S, REFUSED_S = 0.3, 1.0


async def be_client(clients: Clients, questions: Questions) -> None:
    """One answer after the other."""
    rng = clients.rng
    while not clients.is_over.is_set():
        question = questions.streamed(rng)
        leaves_after = rng.randrange(1, 20) if rng.random() < LEAVING_SHARE else None
        stream = await ask(
            clients,
            question,
            clients.server(),
            questions.right[question],
            is_flex=rng.random() < FLEX_SHARE,
            is_whole=rng.random() < WHOLE_SHARE,
            leaves_after=leaves_after,
        )
        await clients.rest(REFUSED_S if stream.ended in (Ended.REFUSED, Ended.BROKEN) else REST_S)


async def ask(
    clients: Clients,
    question: Question,
    server: str,
    right: str,
    *,
    is_flex: bool = False,
    is_whole: bool = False,
    leaves_after: int | None = None,
) -> Stream:
    """What came of it; it is in the history from its beginning."""
    stream = Stream(question.name, server, json.dumps(question.body), right, clients.now(), is_flex, is_whole)
    clients.history.streams.append(stream)
    body = {**question.body, "stream": not is_whole, "service_tier": "flex" if is_flex else "auto"}
    body |= {} if is_whole else {"stream_options": {"include_usage": True}}
    try:
        async with clients.http(server, httpx.Timeout(clients.stream_s, connect=CONNECT_S)) as client:
            if is_whole:
                await _read_whole(clients, stream, await client.post(question.endpoint, json=body))
            else:
                async with client.stream("POST", question.endpoint, json=body) as answer:
                    await _read(clients, stream, answer, leaves_after)
    except (httpx.HTTPError, ValueError) as error:
        stream.ended, stream.error = Ended.BROKEN, repr(error)
    except asyncio.CancelledError:
        stream.error = "the campaign waited no longer"
        raise
    stream.ended_s = clients.now()
    return stream


async def ask_each(clients: Clients, questions: Questions, servers: Iterable[str]) -> None:
    """One of each tier at each gateway, one after the other."""
    for server in servers:
        for is_flex in (False, True):
            question = clients.rng.choice(questions.long)
            await ask(clients, question, server, questions.right[question], is_flex=is_flex)


async def _read_whole(clients: Clients, stream: Stream, answer: httpx.Response) -> None:
    stream.status = answer.status_code
    if answer.status_code == httpx.codes.OK:
        stream.pieces.append(Piece(clients.now(), whole_answer(answer.json())))
        stream.ended = Ended.DONE
    else:
        _fail(stream, answer.text)


async def _read(clients: Clients, stream: Stream, answer: httpx.Response, leaves_after: int | None) -> None:
    stream.status = answer.status_code
    if answer.status_code != httpx.codes.OK:
        _fail(stream, (await answer.aread()).decode(errors="replace"))
        return
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == DONE:
            end = answer_end(finish_reason, usage)
            if stream.pieces:
                stream.pieces[-1].text += end
            else:
                stream.pieces.append(Piece(clients.now(), end))
            stream.ended = Ended.DONE
            return
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            stream.ended, stream.error = Ended.ERROR, data
            return
        usage = chunk.get("usage") or usage
        finish_reason = next((choice["finish_reason"] for choice in chunk["choices"]), None) or finish_reason
        if text := "".join(answer_text(choice) for choice in chunk["choices"]):
            stream.pieces.append(Piece(clients.now(), text))
        if leaves_after is not None and len(stream.pieces) >= leaves_after:
            stream.ended = Ended.LEFT
            return
    stream.ended, stream.error = Ended.BROKEN, "the answer ended without its end"


def _fail(stream: Stream, why: str) -> None:
    stream.ended = Ended.REFUSED if stream.status in REFUSALS else Ended.ERROR
    stream.error = why[:500]
