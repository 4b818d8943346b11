"""From an HTTP request to its generations, and to its answer: what all completion endpoints share."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from services.gateway.api.caller import caller_of, reserve_tokens, sender_of, take_request
from services.gateway.api.context import context_of
from services.gateway.http.errors import CLIENT_CLOSED_REQUEST, SERVER_ERROR, error_response
from services.gateway.http.event_source import EventSource, unless_gone
from services.gateway.http.operation import JsonResponse
from services.gateway.live.choices import Choices
from services.gateway.live.tracker import Tracker
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.requests import CompletionRequest, ServedModel
from shared.openai.fields import FLEX
from shared.openai.responses.answers import ResponseEvents
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

# A longer prompt is tokenized in a thread, and a schema compiled, so that streams do not wait for it.
INLINE_BODY_BYTES = 16 * 1024
COMPILED = (b"json_schema", b"tool_choice", b"strict")

StreamWriter = ChunkWriter | ResponseEvents
T = TypeVar("T")


async def read_request(request: Request, parse: Callable[[bytes, Tokenizer, ServedModel], T]) -> T:
    """The body as ``parse`` reads it. Raises Refusal and what ``parse`` raises."""
    context = context_of(request)
    take_request(request)
    context.admission.check_online(sender_of(request, None).client_id)
    async with context.bodies.body(request, context.settings.max_body_bytes) as body:
        max_model_len = context.registry.max_model_len(context.model.max_model_len)
        model = msgspec.structs.replace(context.model, max_model_len=max_model_len)
        if len(body) <= INLINE_BODY_BYTES and not any(name in body for name in COMPILED):
            return parse(body, context.tokenizer, model)
        return await asyncio.to_thread(parse, body, context.tokenizer, model)


async def answer(
    request: Request,
    completion: CompletionRequest,
    writer: Callable[[Choices], StreamWriter],
    body: Callable[[Choices], msgspec.Struct],
) -> Response:
    """Run its choices, and show them with ``writer`` as their tokens arrive, or with ``body`` when all are whole. They
    are closed at their end, whatever ends them. Raises Refusal, NoExecutorError and BusError."""
    context, choices = context_of(request), await _start_choices(request, completion)
    headers = caller_of(request).limits.headers(context.clock.monotonic_s())
    if completion.stream:
        events = _events(choices, writer(choices), context.tokenizer)
        return EventSource(events, aclosing(choices), headers)
    async with aclosing(choices):
        if not await unless_gone(request.receive, choices.finished()):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    for generation in choices.generations:
        if generation.finish_reason is FinishReason.ERROR:
            return error_response(500, generation.error, SERVER_ERROR)
    return JsonResponse(body(choices), headers=headers)


async def _start_choices(request: Request, completion: CompletionRequest) -> Choices:
    context = context_of(request)
    sender = sender_of(request, completion.user)
    tracker: Tracker[Any] = context.tracker
    if completion.service_tier == FLEX:
        await context.admission.check_flex()
        tracker = context.flex
    else:
        context.admission.check_online(sender.client_id, len(completion.prompt_token_ids), completion.sampling.n)
    return await Choices.submit(tracker, completion, sender, reserve_tokens(request, completion))


async def _events(choices: Choices, writer: StreamWriter, tokenizer: Tokenizer) -> AsyncGenerator[bytes, None]:
    """What one choice has more to show at a time; an error of any choice ends all."""
    start = writer.start()  # with the first token, since clients take the first event for it
    async with aclosing(choices.pieces(tokenizer)) as pieces:
        async for piece in pieces:
            # Text that has to wait for the next token is told as empty: clients take an event for a token.
            has_news = piece.text or piece.tokens or piece.finish_reason is None
            event = writer.text(piece.text, piece.tokens, piece.index) if has_news else b""
            if piece.finish_reason is FinishReason.ERROR:
                yield start + event + writer.fail(choices.generations[piece.index].error)
                return
            if piece.finish_reason is not None:
                event += writer.finish(piece.finish_reason, piece.index)
            if event:
                yield start + event
                start = b""
    yield writer.end(choices.usage())
