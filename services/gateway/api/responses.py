"""/v1/responses: text and calls of functions, stored for as long as the settings say."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from msgspec import UNSET, UnsetType

from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import answer, caller_of, read_body, read_request, take_request, tenant_of, written
from services.gateway.http.operation import JsonResponse, answers, events_of, json_of
from services.gateway.live.choices import Choices
from shared.openai.errors import RequestError
from shared.openai.objects import DeletedResponse, Page
from shared.openai.responses.answers import ModelResponse, ended, new_response
from shared.openai.responses.events import ResponseEvents
from shared.openai.responses.items import REFERENCE, StoredItems, chat_call, items_of, referred_ids
from shared.openai.responses.output import (
    FunctionCall,
    OutputMessage,
    ReasoningItem,
    ReasoningText,
    TextItem,
    response_of,
)
from shared.openai.responses.requests import (
    NOT_STORED,
    RESPONSES,
    ResponseBody,
    ResponseRequest,
    parse_response,
    previous_of,
)
from shared.openai.shown_text import shown_output
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.responses import StoredResponse

EVENTS = events_of("where stream is true: the JSON of OpenAI's events from response.created to its end")

MAX_REFERRED = 256  # responses, whose items an input has by their ids

router = APIRouter(prefix=RESPONSES, tags=["responses"])


class InputText(msgspec.Struct, frozen=True):
    """What a message of the input says; ``annotations`` are there, and empty, where the model has said it."""

    text: str
    type: Literal["input_text", "output_text"] = "input_text"
    annotations: list[dict[str, Any]] | UnsetType = UNSET


class InputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message in a response's input."""

    id: str
    role: str
    content: list[InputText]
    status: Literal["completed"] = "completed"


class FunctionCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """What a function has returned, in a response's input."""

    id: str
    call_id: str
    output: str
    status: Literal["completed"] = "completed"


InputItem = InputMessage | ReasoningItem | FunctionCall | FunctionCallOutput


class InputItemList(Page[InputItem], frozen=True):
    """A part of the items that a response answers."""


class InputTokens(msgspec.Struct, frozen=True):
    """Of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class AnswerInHand:
    """One response, from its request to what is shown and stored of it."""

    def __init__(self, context: Context, key: ApiKeyRecord | None, asked: ResponseRequest) -> None:
        """``key``: its caller's."""
        self._context = context
        self._key = key
        self._asked = asked
        self._is_stored = context.responses.is_on and asked.body.store is not False
        self._ended_s: float | None = None

    def events(self, choices: Choices) -> ResponseEvents:
        completion = self._asked.completion
        return ResponseEvents(self._begun(choices), self._now_s, completion.tools, completion.reasoning)

    def body(self, choices: Choices) -> ModelResponse:
        output = choices.first.output
        completion = self._asked.completion
        tokenizer = self._context.models.of(completion.model).tokenizer
        text, _ = shown_output(tokenizer, output, completion.sampling, shows_calls=completion.tools is not None)
        begun, usage, now_s = self._begun(choices), choices.usage(), int(self._now_s())
        return ended(begun, text, output.finish_reason, usage, now_s, completion.tools, completion.reasoning)

    async def keep(self, choices: Choices) -> None:
        """Before the client is told of its end: what it is told of is there. Raises BusError."""
        if not self._is_stored:
            return
        body = await written(choices, partial(self.body, choices))
        name, organization = ("", "") if self._key is None else (self._key.name, self._key.organization or "")
        stored = StoredResponse(
            id=body.id,
            key_name=name,
            response=msgspec.Raw(msgspec.json.encode(body)),
            before=self._asked.before,
            input=self._asked.input,
            output=_text_of(body, OutputMessage),
            organization=organization,
            calls=[
                chat_call(each.call_id, each.name, each.arguments)
                for each in body.output
                if isinstance(each, FunctionCall)
            ],
            reasoning=_text_of(body, ReasoningItem),
        )
        await self._context.responses.add(stored)

    def _begun(self, choices: Choices) -> ModelResponse:
        """Of what runs: the tier may have come with the URL."""
        first = choices.first
        asked = msgspec.structs.replace(self._asked, completion=first.request)
        return new_response(asked, first.request_id, int(first.arrival_s), self._is_stored)

    def _now_s(self) -> float:
        """Of its end: the same whenever it is asked."""
        if self._ended_s is None:
            self._ended_s = self._context.clock.unix_s()
        return self._ended_s


@router.post("", **answers(json_of(ModelResponse) | EVENTS, body=json_of(ResponseBody)))
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation. It is stored, unless store is false, and others can go on from it."""
    asked = await read_request(request, parse_response, partial(_from_store, request))
    in_hand = AnswerInHand(context_of(request), caller_of(request).key, asked)
    return await answer(request, asked.completion, in_hand.events, in_hand.body, in_hand.keep)


@router.post("/input_tokens", **answers(json_of(InputTokens), body=json_of(ResponseBody)))
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a response has, tools and what it goes on from among them."""
    take_request(request)
    asked = await read_body(request, parse_response, partial(_from_store, request))
    return JsonResponse(InputTokens(len(asked.completion.prompt_token_ids)))


@router.get("/{response_id}", **answers(json_of(ModelResponse)))
async def get_response(request: Request, response_id: str, stream: bool = False) -> Response:
    """A stored response, as it was answered; it does not come as a stream."""
    if stream:
        raise RequestError("a stored response is not streamed; leave stream out", "stream", "unsupported_value")
    return JsonResponse((await _stored(request, response_id)).response)


@router.delete("/{response_id}", **answers(json_of(DeletedResponse)))
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response. Those that went on from it stay whole."""
    _require_storing(request, response_id)
    await context_of(request).responses.delete(response_id, tenant_of(request))
    return JsonResponse(DeletedResponse(response_id))


@router.get("/{response_id}/input_items", **answers(json_of(InputItemList)))
async def list_input_items(
    request: Request,
    response_id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """What it answers, messages, thoughts, calls and their outputs: its own input, and that and the output of the
    responses that it went on from."""
    stored = await _stored(request, response_id)
    messages = enumerate([*stored.before, *stored.input])
    items = [item for index, message in messages for item in _items(f"{index}_{stored.id}", message)]
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [index for index, item in enumerate(items) if item.id == after]
        if not places:
            raise RequestError(f"after: no such id: {after}", "after")
        items = items[places[0] + 1 :]
    data = items[:limit]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return JsonResponse(InputItemList(data, first_id, last_id, has_more=limit < len(items)))


@router.post("/{response_id}/cancel", include_in_schema=False)
async def cancel_response(request: Request, response_id: str) -> Response:
    """None runs in the background."""
    await _stored(request, response_id)
    raise RequestError("only a response in the background can be cancelled, and none is here", "response_id")


async def _from_store(request: Request, body: bytes) -> dict[str, Any]:
    """What ``parse_response`` needs of it. Raises RequestError and BusError."""
    store, previous = context_of(request).responses, previous_of(body)
    found: dict[str, Any] = {}
    if previous is not None and store.is_on:
        stored = await store.get(previous, tenant_of(request), "previous_response_id")
        found["before"] = stored.conversation
    if REFERENCE.encode() in body and store.is_on:
        found["items"] = await _referred(request, await asyncio.to_thread(referred_ids, body))
    return found


async def _referred(request: Request, item_ids: list[str]) -> StoredItems:
    """Those of them that the caller has. Raises RequestError and BusError."""
    response_ids = dict.fromkeys(id for id in map(response_of, item_ids) if id is not None)
    if len(response_ids) > MAX_REFERRED:
        message = f"input refers to items of {len(response_ids)} responses; {MAX_REFERRED} are allowed"
        raise RequestError(message, "input")
    items: StoredItems = {}
    for response_id in response_ids:
        with suppress(RequestError):
            items |= items_of((await context_of(request).responses.get(response_id, tenant_of(request))).response)
    return items


async def _stored(request: Request, response_id: str) -> StoredResponse:
    _require_storing(request, response_id)
    return await context_of(request).responses.get(response_id, tenant_of(request))


def _require_storing(request: Request, response_id: str) -> None:
    if not context_of(request).responses.is_on:
        raise RequestError(f"no such response: {response_id}; {NOT_STORED}", "response_id", "not_found", 404)


def _items(place: str, message: dict[str, Any]) -> Iterator[InputItem]:
    """Of a chat's message; ``place`` is in their ids."""
    role, content, calls = message["role"], message["content"], message.get("tool_calls", ())
    if role == "tool":
        yield FunctionCallOutput(f"fco_{place}", message["tool_call_id"], content)
        return
    if thought := message.get("reasoning"):
        yield ReasoningItem(f"rs_{place}", "completed", [ReasoningText(thought)])
    if content or not (calls or thought):
        text = InputText(content, "output_text", []) if role == "assistant" else InputText(content)
        yield InputMessage(f"msg_{place}", role, [text])
    for number, call in enumerate(calls):
        yield FunctionCall(f"fc_{place}_{number}", call["id"], **call["function"])


def _text_of(body: ModelResponse, kind: type[TextItem]) -> str:
    """Of its items of the kind."""
    return "".join(item.content[0].text for item in body.output if isinstance(item, kind))
