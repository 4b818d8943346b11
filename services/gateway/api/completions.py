"""/v1/chat/completions and /v1/completions."""

from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import context_of
from services.gateway.api.intake import answer, read_request
from services.gateway.http.operation import answers, events_of, json_of
from services.gateway.live.choices import Choices
from services.gateway.live.generation import Generation
from shared.openai.completions.answers import (
    AnswerHead,
    ChatCompletion,
    Choice,
    Completion,
    TextCompletion,
    completion_body,
)
from shared.openai.completions.bodies import ChatCompletionBody, TextCompletionBody
from shared.openai.completions.chunks import ChunkWriter, ToolCallChunks
from shared.openai.completions.requests import CHAT, TEXT, parse_completion
from shared.openai.logprobs import LogprobsShape

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
    completion = await read_request(request, partial(parse_completion, endpoint))
    logprobs = LogprobsShape(context_of(request).tokenizer, endpoint == CHAT)
    return await answer(request, completion, partial(_writer, logprobs), partial(_body, logprobs))


def _writer(logprobs: LogprobsShape, choices: Choices) -> ChunkWriter:
    request = choices.first.request
    writer = ChunkWriter if request.tools is None else partial(ToolCallChunks, request.tools)
    return writer(_head(choices.first), request.include_usage, logprobs, len(choices.generations))


def _body(logprobs: LogprobsShape, choices: Choices) -> Completion:
    sampling, tools = choices.first.request.sampling, choices.first.request.tools
    shown = [Choice.of(each.output, sampling, logprobs, tools is not None) for each in choices.generations]
    return completion_body(_head(choices.first), shown, choices.usage(), tools)


def _head(first: Generation) -> AnswerHead:
    request = first.request
    return AnswerHead(request.endpoint, first.request_id, int(first.arrival_s), request.model, request.service_tier)
