"""/v1/chat/completions and /v1/completions; /v1/responses, which are text and not stored; /v1/models."""

from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import answer, read_request
from services.gateway.http.operation import JsonResponse, answers, events_of, json_of
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
from shared.openai.errors import RequestError
from shared.openai.objects import Model, ModelList
from shared.openai.responses.answers import ModelResponse, ResponseEvents, ended, new_response
from shared.openai.responses.requests import NOT_STORED, RESPONSES, ResponseBody, ResponseRequest, parse_response
from shared.openai.shown_text import LogprobsShape, shown_output

CHUNKS = events_of("where stream is true: the JSON of a chunk, of the last one [DONE]")
EVENTS = events_of("where stream is true: the JSON of OpenAI's events from response.created to its end")

router = APIRouter()


@router.post(CHAT, tags=["completions"], **answers(json_of(ChatCompletion) | CHUNKS, body=json_of(ChatCompletionBody)))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await _complete(CHAT, request)


@router.post(TEXT, tags=["completions"], **answers(json_of(TextCompletion) | CHUNKS, body=json_of(TextCompletionBody)))
async def text_completions(request: Request) -> Response:
    """Continue a text."""
    return await _complete(TEXT, request)


@router.post(RESPONSES, tags=["responses"], **answers(json_of(ModelResponse) | EVENTS, body=json_of(ResponseBody)))
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation. Nothing is stored."""
    asked = await read_request(request, parse_response)
    context = context_of(request)
    return await answer(request, asked.completion, partial(_events, context, asked), partial(_response, context, asked))


@router.api_route(f"{RESPONSES}/{{rest:path}}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
async def stored_response(request: Request, rest: str) -> Response:
    """Retrieve, delete, cancel, list the input of: there is nothing to do it to."""
    raise RequestError(f"no such response: {rest}; {NOT_STORED}", "response_id", "not_found", 404)


@router.get("/v1/models", tags=["models"], **answers(json_of(ModelList)))
async def list_models(request: Request) -> Response:
    """The model that this stack serves."""
    return JsonResponse(ModelList([_model(context_of(request))]))


@router.get("/v1/models/{model_id:path}", tags=["models"], **answers(json_of(Model)))
async def get_model(request: Request, model_id: str) -> Response:
    """One model, by its name, which may have slashes in it."""
    context = context_of(request)
    context.model.check(model_id)
    return JsonResponse(_model(context))


async def _complete(endpoint: str, request: Request) -> Response:
    completion = await read_request(request, partial(parse_completion, endpoint))
    logprobs = LogprobsShape(context_of(request).tokenizer, endpoint == CHAT)
    return await answer(request, completion, partial(_chunks, logprobs), partial(_completion, logprobs))


def _chunks(logprobs: LogprobsShape, choices: Choices) -> ChunkWriter:
    request = choices.first.request
    writer = ChunkWriter if request.tools is None else partial(ToolCallChunks, tools=request.tools)
    return writer(_head(choices.first), request.include_usage, logprobs, len(choices.generations))


def _completion(logprobs: LogprobsShape, choices: Choices) -> Completion:
    sampling, tools = choices.first.request.sampling, choices.first.request.tools
    shown = [Choice.of(each.output, sampling, logprobs, tools is not None) for each in choices.generations]
    return completion_body(_head(choices.first), shown, choices.usage(), tools)


def _head(first: Generation) -> AnswerHead:
    request = first.request
    return AnswerHead(request.endpoint, first.request_id, int(first.arrival_s), request.model, request.service_tier)


def _events(context: Context, asked: ResponseRequest, choices: Choices) -> ResponseEvents:
    return ResponseEvents(_begun(asked, choices.first), context.clock.unix_s)


def _response(context: Context, asked: ResponseRequest, choices: Choices) -> ModelResponse:
    output, begun = choices.first.output, _begun(asked, choices.first)
    text, _ = shown_output(context.tokenizer, output, asked.completion.sampling)
    return ended(begun, text, output.finish_reason, choices.usage(), int(context.clock.unix_s()))


def _begun(asked: ResponseRequest, generation: Generation) -> ModelResponse:
    return new_response(asked, generation.request_id, int(generation.arrival_s))


def _model(context: Context) -> Model:
    max_model_len = context.registry.max_model_len(context.model.max_model_len)
    return Model(context.model.name, context.created_s, max_model_len)
