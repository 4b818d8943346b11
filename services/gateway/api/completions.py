"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.caller import limit_headers
from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import await_end, read_request, start_choices, tracker_of
from services.gateway.http.json_response import JsonResponse
from services.gateway.http.operation import answers, events_of, json_of
from services.gateway.live.event_stream import EventStream, usage_of
from services.gateway.live.generation import Generation
from shared.openai.completions.answers import Choice, ChunkWriter, completion_body
from shared.openai.completions.objects import ChatCompletion, TextCompletion
from shared.openai.completions.requests import (
    CHAT,
    TEXT,
    ChatCompletionBody,
    TextCompletionBody,
    parse_completion,
)
from shared.openai.logprobs import LogprobsShape
from shared.openai.text import shown_output
from shared.openai.tools.answers import ToolCallChunks
from shared.text.tokenizer import Tokenizer

EVENTS = events_of("where stream is true: the JSON of a chunk, of the last one [DONE]")

router = APIRouter(tags=["completions"])


@router.post(CHAT, **answers(json_of(ChatCompletion) | EVENTS, body=json_of(ChatCompletionBody)))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await _complete(CHAT, request)


@router.post(TEXT, **answers(json_of(TextCompletion) | EVENTS, body=json_of(TextCompletionBody)))
async def text_completions(request: Request) -> Response:
    """Continue a text."""
    return await _complete(TEXT, request)


async def _complete(endpoint: str, request: Request) -> Response:
    context = context_of(request)
    completion = await read_request(request, partial(parse_completion, endpoint))
    generations = await start_choices(request, completion)
    headers = limit_headers(request)
    if not completion.stream:
        return await await_end(request, *generations) or _body(context, generations, headers)
    writer = ChunkWriter(
        endpoint,
        generations[0].request_id,
        int(generations[0].arrival_s),
        completion.model,
        completion.include_usage,
        completion.service_tier,
        LogprobsShape(context.tokenizer, endpoint == CHAT),
        len(generations),
    )
    tools, request_id = completion.tools, generations[0].request_id
    events = writer if tools is None else ToolCallChunks(writer, tools, request_id, len(generations))
    return EventStream(tracker_of(context, generations[0]), generations, events, context.tokenizer, headers)


def _body(context: Context, generations: list[Generation], headers: Mapping[str, str]) -> Response:
    first = generations[0]
    return JsonResponse(
        completion_body(
            endpoint=first.request.endpoint,
            request_id=first.request_id,
            created=int(first.arrival_s),
            model=first.request.model,
            choices=[_choice(generation, context.tokenizer) for generation in generations],
            usage=usage_of(*generations),
            service_tier=first.request.service_tier,
            tools=first.request.tools,
        ),
        headers=dict(headers),
    )


def _choice(generation: Generation, tokenizer: Tokenizer) -> Choice:
    request, finish_reason = generation.request, generation.finish_reason
    assert finish_reason is not None
    text, tokens = shown_output(
        tokenizer,
        generation.output_token_ids,
        generation.output_logprobs,
        finish_reason,
        request.sampling,
        shows_calls=request.tools is not None,
    )
    return Choice(text, finish_reason, LogprobsShape(tokenizer, request.endpoint == CHAT).body(tokens))
