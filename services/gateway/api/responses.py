"""/v1/responses: text, nothing stored."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.gateway.api.caller import limit_headers
from services.gateway.api.context import context_of
from services.gateway.api.intake import await_end, read_request, start_choices, stream
from services.gateway.http.json_response import JsonResponse
from services.gateway.http.operation import answers, events_of, json_of
from shared.openai.errors import RequestError
from shared.openai.responses.answers import ResponseAnswer, ResponseEvents
from shared.openai.responses.objects import ModelResponse
from shared.openai.responses.requests import NOT_STORED, RESPONSES, ResponseBody, parse_response
from shared.openai.shown_text import output_text

EVENTS = events_of("where stream is true: the JSON of OpenAI's events from response.created to its end")

router = APIRouter(tags=["responses"])


@router.post(RESPONSES, **answers(json_of(ModelResponse) | EVENTS, body=json_of(ResponseBody)))
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation. Nothing is stored."""
    context = context_of(request)
    asked = await read_request(request, parse_response)
    choices = await start_choices(request, asked.completion)
    generation = choices.first
    answer = ResponseAnswer(asked, generation.request_id, int(generation.arrival_s))
    if asked.completion.stream:
        return stream(request, choices, ResponseEvents(answer, context.clock.unix_s))
    headers = limit_headers(request)
    if refusal := await await_end(request, choices):
        return refusal
    finish_reason = generation.finish_reason
    assert finish_reason is not None
    text = output_text(context.tokenizer, generation.output_token_ids, finish_reason, asked.completion.sampling)
    return JsonResponse(
        answer.ended(text, finish_reason, choices.usage(), int(context.clock.unix_s())), headers=headers
    )


@router.api_route(f"{RESPONSES}/{{rest:path}}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
async def stored_response(request: Request, rest: str) -> Response:
    """Retrieve, delete, cancel, list the input of: there is nothing to do it to."""
    raise RequestError(f"no such response: {rest}; {NOT_STORED}", "response_id", "not_found", 404)
