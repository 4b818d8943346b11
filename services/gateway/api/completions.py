"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.caller import limit_headers
from services.gateway.api.context import context_of
from services.gateway.api.intake import await_end, read_request, start_choices, stream
from services.gateway.http.json_response import JsonResponse
from services.gateway.http.operation import answers, events_of, json_of
from services.gateway.live.choices import Choices
from services.gateway.live.generation import Generation
from shared.openai.completions.answers import AnswerHead, Choice, completion_body
from shared.openai.completions.bodies import ChatCompletionBody, TextCompletionBody
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.objects import ChatCompletion, TextCompletion
from shared.openai.completions.requests import CHAT, TEXT, CompletionRequest, parse_completion
from shared.openai.completions.tool_chunks import ToolCallChunks
from shared.openai.logprobs import LogprobsShape
from shared.openai.shown_text import shown_output
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
    choices = await start_choices(request, completion)
    if completion.stream:
        return stream(request, choices, _writer(choices, completion, context.tokenizer))
    headers = limit_headers(request)
    if refusal := await await_end(request, choices):
        return refusal
    shown = [_choice(generation, context.tokenizer) for generation in choices.generations]
    body = completion_body(_head(choices, completion), shown, choices.usage(), completion.tools)
    return JsonResponse(body, headers=headers)


def _head(choices: Choices, completion: CompletionRequest) -> AnswerHead:
    first = choices.first
    created = int(first.arrival_s)
    return AnswerHead(completion.endpoint, first.request_id, created, completion.model, completion.service_tier)


def _writer(choices: Choices, completion: CompletionRequest, tokenizer: Tokenizer) -> ChunkWriter:
    writer = ChunkWriter if completion.tools is None else partial(ToolCallChunks, completion.tools)
    logprobs = LogprobsShape(tokenizer, completion.endpoint == CHAT)
    return writer(_head(choices, completion), completion.include_usage, logprobs, len(choices.generations))


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
