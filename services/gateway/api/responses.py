"""/v1/responses: text, nothing stored."""

from functools import partial

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import answer, read_request
from services.gateway.http.operation import answers, events_of, json_of
from services.gateway.live.choices import Choices
from services.gateway.live.generation import Generation
from shared.openai.errors import RequestError
from shared.openai.responses.answers import ResponseEvents, ended, new_response
from shared.openai.responses.objects import ModelResponse
from shared.openai.responses.requests import NOT_STORED, RESPONSES, ResponseBody, ResponseRequest, parse_response
from shared.openai.shown_text import shown_output

EVENTS = events_of("where stream is true: the JSON of OpenAI's events from response.created to its end")

router = APIRouter(tags=["responses"])


@router.post(RESPONSES, **answers(json_of(ModelResponse) | EVENTS, body=json_of(ResponseBody)))
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation. Nothing is stored."""
    asked = await read_request(request, parse_response)
    context = context_of(request)
    return await answer(request, asked.completion, partial(_writer, context, asked), partial(_body, context, asked))


def _writer(context: Context, asked: ResponseRequest, choices: Choices) -> ResponseEvents:
    return ResponseEvents(_begun(asked, choices.first), context.clock.unix_s)


def _body(context: Context, asked: ResponseRequest, choices: Choices) -> ModelResponse:
    output, begun = choices.first.output, _begun(asked, choices.first)
    text, _ = shown_output(context.tokenizer, output, asked.completion.sampling)
    return ended(begun, text, output.finish_reason, choices.usage(), int(context.clock.unix_s()))


def _begun(asked: ResponseRequest, generation: Generation) -> ModelResponse:
    return new_response(asked, generation.request_id, int(generation.arrival_s))


@router.api_route(f"{RESPONSES}/{{rest:path}}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
async def stored_response(request: Request, rest: str) -> Response:
    """Retrieve, delete, cancel, list the input of: there is nothing to do it to."""
    raise RequestError(f"no such response: {rest}; {NOT_STORED}", "response_id", "not_found", 404)
