"""Read the body of a request to /v1/responses: the same request, asked for as a chat completion."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.openai.completions.bodies import CommonBody
from shared.openai.completions.prompt_fields import Effort
from shared.openai.completions.requests import CHAT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import RESPONSE_FIELDS, check_depth, check_field, read_fields
from shared.openai.responses.items import ChatMessages, InputItem, Messages, StoredItems
from shared.openai.responses.tools import TOOL_CHOICE_SCHEMA, FunctionTool, chat_tool_choice, chat_tools
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer

RESPONSES = "/v1/responses"

NOT_STORED = "responses are not stored here; send the whole conversation as input"
NO_CONVERSATION = "conversation is not supported: name previous_response_id, or send the whole conversation as input"
PLAIN = {"type": "text"}
Identifier = Annotated[str, Meta(max_length=64)]  # OpenAI's limit: the answer repeats it
RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
}
RENAMED_FIELDS = ("max_completion_tokens", "response_format", "reasoning_effort", "messages", "tools")

_FIELD = re.compile(r"\w+")
_MESSAGE = re.compile(r"messages\[(?P<index>\d+)\](?P<within>\.tool_calls\[\d+\]\.function|\.tool_call_id)?")


class ResponseText(msgspec.Struct):
    """How the text is to be; a format is as in OpenAI's API."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the model is to think before it answers. What it thinks is told whole, whatever ``summary`` is."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseBody(CommonBody, kw_only=True):
    """What is to be answered: a text, or messages, after those of ``previous_response_id``. Null is as absent."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    text: ResponseText | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Annotated[Any, Meta(extra_json_schema=TOOL_CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    user: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    store: bool | None = None
    previous_response_id: str | None = None

    @property
    def text_format(self) -> dict[str, Any]:
        """That the text is to have."""
        return (self.text and self.text.format) or PLAIN


class GoingOn(msgspec.Struct):
    """Of any body, what it goes on from."""

    previous_response_id: str | None = None


class ResponseRequest(msgspec.Struct, frozen=True):
    """A valid request; the answer repeats much of its body."""

    completion: CompletionRequest
    body: ResponseBody
    before: Messages = []  # of the responses that it goes on from
    input: Messages = []  # its own


_decoder = msgspec.json.Decoder(ResponseBody)
_going_on_decoder = msgspec.json.Decoder(GoingOn)
_encoder = msgspec.json.Encoder()


def previous_of(body: bytes) -> str | None:
    """The response that a request goes on from; what else is in it may be wrong. Raises RequestError."""
    return decode_body(body, _going_on_decoder).previous_response_id or None


def parse_response(
    body: bytes,
    tokenizer: Tokenizer,
    model: ServedModel,
    before: Messages | None = None,
    items: StoredItems | None = None,
) -> ResponseRequest:
    """As ``parse_completion``. ``before``: the messages that it goes on from; None where there are none. ``items``:
    those that its input refers to; None where none is stored. Raises RequestError, with the names that the client
    used."""
    fields = decode_body(body, _decoder)
    raw = _supported_fields(body, fields)
    if fields.previous_response_id and before is None:
        message = f"previous_response_id is not supported: {NOT_STORED}"
        raise RequestError(message, "previous_response_id", "unsupported_parameter")
    asked: dict[str, Any] = {name: raw[name] for name in CommonBody.__struct_fields__ if name in raw}
    own, instructed = _chat_messages(fields.input, items), fields.instructions is not None
    system: Messages = [{"role": "system", "content": fields.instructions}] if instructed else []
    asked["messages"] = [*system, *(before or []), *own.messages]
    asked["tools"], asked["tool_choice"] = chat_tools(fields.tools or []), chat_tool_choice(fields.tool_choice)
    asked["parallel_tool_calls"] = fields.parallel_tool_calls
    asked["reasoning_effort"] = fields.reasoning and fields.reasoning.effort
    if fields.max_output_tokens is not None:
        asked["max_completion_tokens"] = fields.max_output_tokens
    if fields.text_format != PLAIN:
        asked["response_format"] = _response_format(fields.text_format)
    try:
        completion = parse_completion(CHAT, _encoder.encode(asked), tokenizer, model)
    except RequestError as error:
        raise _renamed(error, own, num_before=len(system) + len(before or [])) from error
    return ResponseRequest(completion, fields, before or [], own.messages)


def _supported_fields(body: bytes, fields: ResponseBody) -> dict[str, msgspec.Raw]:
    try:
        raw = read_fields(body, fields.__struct_fields__, RESPONSE_FIELDS)
    except RequestError as error:
        if error.param != "conversation":
            raise
        raise RequestError(NO_CONVERSATION, error.param, error.code) from error
    if fields.text is not None:
        check_field("text.verbosity", fields.text.verbosity, ("medium",))
        check_depth("text.format", fields.text.format)
    return raw


def _chat_messages(input: str | list[InputItem] | None, stored: StoredItems | None) -> ChatMessages:
    """Raises RequestError."""
    if not input:
        raise RequestError("input is missing or empty; give a text or a list of items", "input")
    return ChatMessages([InputItem(role="user", content=input)] if isinstance(input, str) else input, stored)


def _response_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """A chat completion has the schema one level deeper."""
    if text_format.get("type") != "json_schema":
        return text_format
    schema = {name: value for name, value in text_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _renamed(error: RequestError, own: ChatMessages, num_before: int) -> RequestError:
    """With the fields' names of this endpoint; ``num_before`` messages are not of the input."""

    def as_input(match: re.Match[str]) -> str:
        message, within = f"messages[{int(match['index']) - num_before}]", match["within"] or ""
        return own.places.get(message + within) or own.places.get(message, "input[0]") + within

    field = _FIELD.match(error.param or "")
    if field is None or field[0] not in RENAMED_FIELDS:
        return error
    param, message = _MESSAGE.sub(as_input, error.param or ""), _MESSAGE.sub(as_input, error.message)
    for theirs, ours in RENAMED.items():
        param = re.sub(rf"^{theirs}\b", ours, param)
        message = re.sub(rf"\b{theirs}\b", ours, message)
    return RequestError(message, param, error.code, error.status)
