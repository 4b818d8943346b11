"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from services.gateway.client_id import client_id_of
from services.gateway.context import Context, context_of
from services.gateway.errors import CLIENT_CLOSED_REQUEST, SERVER_ERROR, error_response
from services.gateway.event_stream import EventStream, close_on_disconnect, usage_of
from services.gateway.generation import Generation
from services.gateway.json_response import JsonResponse, read_body
from shared.openai.requests import CHAT, TEXT, CompletionRequest, ServedModel, parse_completion
from shared.openai.responses import ChunkWriter, completion_body
from shared.openai.text import output_text
from shared.protocol.messages import FinishReason

MAX_BODY_BYTES = 16 * 1024 * 1024
INLINE_BODY_BYTES = 16 * 1024  # a longer prompt is tokenized in a thread, so that streams do not wait for it

router = APIRouter()


@router.post(CHAT)
async def chat_completions(request: Request) -> Response:
    return await _complete(CHAT, request)


@router.post(TEXT)
async def text_completions(request: Request) -> Response:
    return await _complete(TEXT, request)


async def _complete(endpoint: str, request: Request) -> Response:
    context = context_of(request)
    completion = await _parse(endpoint, await read_body(request, MAX_BODY_BYTES), context)
    client_id = client_id_of(request.headers.get("authorization"), completion.user)
    generation = await context.tracker.submit(completion, client_id)
    if not completion.stream:
        return await _whole_answer(request, context, generation)
    writer = ChunkWriter(
        endpoint, generation.request_id, int(generation.arrival_s), completion.model, completion.include_usage
    )
    detokenizer = context.tokenizer.detokenizer(completion.sampling.stop)
    return EventStream(context.tracker, generation, writer, detokenizer)


async def _parse(endpoint: str, body: bytes, context: Context) -> CompletionRequest:
    model = ServedModel(context.model.name, context.registry.max_model_len(context.model.max_model_len))
    if len(body) <= INLINE_BODY_BYTES:
        return parse_completion(endpoint, body, context.tokenizer, model)
    return await asyncio.to_thread(parse_completion, endpoint, body, context.tokenizer, model)


async def _whole_answer(request: Request, context: Context, generation: Generation) -> Response:
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(close_on_disconnect(request.receive, context.tracker, generation))
            await generation.finished()
            watcher.cancel()
    finally:
        await context.tracker.close(generation)
    finish_reason = generation.finish_reason
    assert finish_reason is not None
    if finish_reason is FinishReason.ERROR:
        return error_response(500, generation.error, SERVER_ERROR)
    if finish_reason is FinishReason.ABORT:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return _body(context, generation, finish_reason)


def _body(context: Context, generation: Generation, finish_reason: FinishReason) -> Response:
    request = generation.request
    return JsonResponse(
        completion_body(
            endpoint=request.endpoint,
            request_id=generation.request_id,
            created=int(generation.arrival_s),
            model=request.model,
            text=output_text(context.tokenizer, generation.output_token_ids, finish_reason, request.sampling),
            finish_reason=finish_reason,
            usage=usage_of(generation),
        )
    )
