"""From an HTTP request to a generation, and to its end: what all completion endpoints share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from services.gateway.api.caller import reserve_tokens, sender_of, take_request
from services.gateway.api.context import Context, context_of
from services.gateway.http.errors import CLIENT_CLOSED_REQUEST, SERVER_ERROR, error_response
from services.gateway.live.choices import Tracker, submit_choices
from services.gateway.live.event_stream import close_on_disconnect
from services.gateway.live.flex_generation import FlexGeneration
from services.gateway.live.generation import Generation
from shared.openai.completions.requests import CompletionRequest, ServedModel
from shared.openai.service_tier import FLEX
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer

# A longer prompt is tokenized in a thread, and a schema compiled, so that streams do not wait for it.
INLINE_BODY_BYTES = 16 * 1024
COMPILED = (b"json_schema", b"tool_choice", b"strict")

T = TypeVar("T")


async def read_request(request: Request, parse: Callable[[bytes, Tokenizer, ServedModel], T]) -> T:
    """The body as ``parse`` reads it. Raises Refusal and what ``parse`` raises."""
    context = context_of(request)
    take_request(request)
    context.admission.check_online(sender_of(request, None).client_id)
    async with context.bodies.body(request, context.max_body_bytes) as body:
        max_model_len = context.registry.max_model_len(context.model.max_model_len)
        model = msgspec.structs.replace(context.model, max_model_len=max_model_len)
        if len(body) <= INLINE_BODY_BYTES and not any(name in body for name in COMPILED):
            return parse(body, context.tokenizer, model)
        return await asyncio.to_thread(parse, body, context.tokenizer, model)


async def start_generation(request: Request, completion: CompletionRequest) -> Generation:
    """Of a request for one choice. It runs from here on; whoever has it closes it. Raises Refusal, NoExecutorError and
    BusError."""
    (generation,) = await start_choices(request, completion)
    return generation


async def start_choices(request: Request, completion: CompletionRequest) -> list[Generation]:
    """One generation for each choice, of which ``start_generation`` holds."""
    context = context_of(request)
    sender = sender_of(request, completion.user)
    if completion.service_tier == FLEX:
        await context.admission.check_flex()
        return await submit_choices(context.flex, completion, sender, reserve_tokens(request, completion))
    context.admission.check_online(sender.client_id, len(completion.prompt_token_ids), completion.sampling.n)
    return await submit_choices(context.tracker, completion, sender, reserve_tokens(request, completion))


def tracker_of(context: Context, generation: Generation) -> Tracker:
    """Who closes it."""
    return context.flex if isinstance(generation, FlexGeneration) else context.tracker


async def await_end(request: Request, *generations: Generation) -> Response | None:
    """Wait for the whole outputs, or an error of one, and close the generations; what to answer where there is nothing
    to show."""
    tracker = tracker_of(context_of(request), generations[0])
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(close_on_disconnect(request.receive, tracker, *generations))
            for generation in generations:
                await generation.finished()
                if generation.finish_reason is FinishReason.ERROR:
                    break
            watcher.cancel()
    finally:
        for generation in generations:
            await tracker.close(generation)
    for generation in generations:
        if generation.finish_reason is FinishReason.ERROR:
            return error_response(500, generation.error, SERVER_ERROR)
    if any(generation.finish_reason is FinishReason.ABORT for generation in generations):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return None
