"""/v1/chat/completions, /v1/completions and /v1/models."""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import answer, read_request, served_for
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
from shared.openai.completions.chunks import ChunkWriter, EchoChunks, ToolCallChunks
from shared.openai.completions.reasoning_chunks import ReasoningChunks
from shared.openai.completions.requests import CHAT, TEXT, parse_completion
from shared.openai.objects import Model, ModelList
from shared.openai.served_model import ServedModel
from shared.openai.shown_prompt import Echo, ShownPrompt
from shared.openai.shown_text import LogprobsShape

CHUNKS = events_of("where stream is true: the JSON of a chunk, of the last one [DONE]")

router = APIRouter()


@router.post(CHAT, tags=["completions"], **answers(json_of(ChatCompletion) | CHUNKS, body=json_of(ChatCompletionBody)))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await _complete(CHAT, request)


@router.post(TEXT, tags=["completions"], **answers(json_of(TextCompletion) | CHUNKS, body=json_of(TextCompletionBody)))
async def text_completions(request: Request) -> Response:
    """Continue a text."""
    return await _complete(TEXT, request)


@router.get("/v1/models", tags=["models"], **answers(json_of(ModelList)))
async def list_models(request: Request) -> Response:
    """The models that this stack serves, by each of their names, and their LoRA adapters."""
    context = context_of(request)
    served = [served_for(request, model) for model in context.models]
    return JsonResponse(ModelList([_model(context, model, name) for model in served for name in model.names]))


@router.get("/v1/models/{model_id:path}", tags=["models"], **answers(json_of(Model)))
async def get_model(request: Request, model_id: str) -> Response:
    """One model, by a name, which may have slashes in it."""
    context = context_of(request)
    model = served_for(request, context.models.of(model_id))
    model.check(model_id)
    return JsonResponse(_model(context, model, model_id))


async def _complete(endpoint: str, request: Request) -> Response:
    completion = await read_request(request, partial(parse_completion, endpoint))
    logprobs = LogprobsShape(context_of(request).models.of(completion.model).tokenizer, endpoint == CHAT)
    return await answer(request, completion, partial(_chunks, logprobs), partial(_completion, logprobs))


def _chunks(logprobs: LogprobsShape, choices: Choices) -> ChunkWriter | ReasoningChunks:
    request = choices.first.request
    writer: Callable[..., ChunkWriter] = (
        ChunkWriter if request.tools is None else partial(ToolCallChunks, tools=request.tools)
    )
    if request.sampling.echo:
        firsts, n = choices.generations[:: choices.num_per_prompt], choices.num_per_prompt
        echoes = [echo for each in firsts for echo in [Echo.of(logprobs.tokenizer, each.request.prompt_token_ids)] * n]
        shown = partial(_shown_prompt, choices)
        writer = partial(EchoChunks, echoes=echoes, prompt_of=shown, sampling=request.sampling)
    usage = choices.usage_so_far if request.tells_usage_so_far else None
    made = writer(_head(choices.first), request.include_usage, logprobs, len(choices.generations), usage)
    return made if request.reasoning is None else ReasoningChunks(made, request.reasoning)


def _completion(logprobs: LogprobsShape, choices: Choices) -> Completion:
    request = choices.first.request
    tools = request.tools
    shown = [
        Choice.of(each.output, each.request.sampling, logprobs, tools is not None, _shown_prompt(choices, index))
        for index, each in enumerate(choices.generations)
    ]
    return completion_body(_head(choices.first), shown, choices.usage(), tools, request.reasoning)


def _shown_prompt(choices: Choices, index: int) -> ShownPrompt:
    generation = choices.generations[index]
    return ShownPrompt(generation.request.prompt_token_ids, generation.prompt_scores)


def _head(first: Generation) -> AnswerHead:
    request = first.request
    return AnswerHead(request.endpoint, first.request_id, int(first.arrival_s), request.model, request.service_tier)


def _model(context: Context, model: ServedModel, name: str) -> Model:
    is_adapter = name in model.adapters
    root, parent = (model.adapters[name], model.name) if is_adapter else (model.name, None)
    return Model(name, context.created_s, model.max_model_len, root=root, parent=parent)
