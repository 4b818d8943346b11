"""Read the body of a request to /v1/responses: the same request, asked for as a chat completion."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.completions.bodies import CommonBody
from shared.openai.completions.prompts import ContentPart, content_text
from shared.openai.completions.requests import CHAT, CompletionRequest, ServedModel, parse_completion
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import RESPONSE_FIELDS, check_depth, check_field, read_fields
from shared.text.tokenizer import Tokenizer

RESPONSES = "/v1/responses"

NOT_STORED = "responses are not stored here; send the whole conversation as input"
STORED_FIELDS = ("previous_response_id", "conversation")
PLAIN = {"type": "text"}
TEXT_PARTS = ("input_text", "output_text", "text")
RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
}

_FIELD = re.compile(r"\w+")
_MESSAGE = re.compile(r"messages\[(?P<index>\d+)\]")


class ResponseText(msgspec.Struct):
    """How the text is to be; a format is as in OpenAI's API."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class InputItem(msgspec.Struct):
    """One item of the input; without a type it is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None


class ResponseBody(CommonBody, kw_only=True):
    """What is to be answered: a text, or messages. Null is as absent. Nothing is stored, whatever ``store`` is."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    text: ResponseText | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    store: bool | None = None

    @property
    def text_format(self) -> dict[str, Any]:
        """That the text is to have."""
        return (self.text and self.text.format) or PLAIN


class ResponseRequest(msgspec.Struct, frozen=True):
    """A valid request; the answer repeats much of its body."""

    completion: CompletionRequest
    body: ResponseBody


_decoder = msgspec.json.Decoder(ResponseBody)
_encoder = msgspec.json.Encoder()


def parse_response(body: bytes, tokenizer: Tokenizer, model: ServedModel) -> ResponseRequest:
    """As ``parse_completion``. Raises RequestError, with the names that the client used."""
    fields = decode_body(body, _decoder)
    raw = _supported_fields(body, fields)
    asked: dict[str, Any] = {name: raw[name] for name in CommonBody.__struct_fields__ if name in raw}
    asked["messages"] = _chat_messages(fields.input, fields.instructions)
    if fields.max_output_tokens is not None:
        asked["max_completion_tokens"] = fields.max_output_tokens
    if fields.text_format != PLAIN:
        asked["response_format"] = _response_format(fields.text_format)
    try:
        completion = parse_completion(CHAT, _encoder.encode(asked), tokenizer, model)
    except RequestError as error:
        raise _renamed(error, has_instructions=fields.instructions is not None) from error
    return ResponseRequest(completion, fields)


def _supported_fields(body: bytes, fields: ResponseBody) -> dict[str, msgspec.Raw]:
    try:
        raw = read_fields(body, fields.__struct_fields__, RESPONSE_FIELDS)
    except RequestError as error:
        if error.param not in STORED_FIELDS:
            raise
        raise RequestError(f"{error.param} is not supported: {NOT_STORED}", error.param, error.code) from error
    if fields.text is not None:
        check_field("text.verbosity", fields.text.verbosity, ("medium",))
        check_depth("text.format", fields.text.format)
    return raw


def _chat_messages(input: str | list[InputItem] | None, instructions: str | None) -> list[dict[str, Any]]:
    """One message for the instructions, where there are some, and one for each item. Raises RequestError."""
    if not input:
        raise RequestError("input is missing or empty; give a text or a list of items", "input")
    system: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(input, str):
        return [*system, {"role": "user", "content": input}]
    return system + [_chat_message(f"input[{index}]", item) for index, item in enumerate(input)]


def _chat_message(where: str, item: InputItem) -> dict[str, Any]:
    if item.type == "item_reference":
        raise RequestError("items are not stored here; send the item itself", f"{where}.type", "unsupported_value")
    if item.type != "message":
        message = f"an input item of type {item.type!r} is not supported; only messages are"
        raise RequestError(message, f"{where}.type", "unsupported_value")
    if item.role is None:
        raise RequestError(f"{where}.role is missing", f"{where}.role")
    return {"role": item.role, "content": content_text(f"{where}.content", item.content, TEXT_PARTS)}


def _response_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """A chat completion has the schema one level deeper."""
    if text_format.get("type") != "json_schema":
        return text_format
    schema = {name: value for name, value in text_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _renamed(error: RequestError, has_instructions: bool) -> RequestError:
    """With the fields' names of this endpoint; the instructions are the first message."""

    def as_input(match: re.Match[str]) -> str:
        return f"input[{max(0, int(match['index']) - has_instructions)}]"

    field = _FIELD.match(error.param or "")
    if field is None or field[0] not in RENAMED:
        return error
    param, message = _MESSAGE.sub(as_input, error.param or ""), _MESSAGE.sub(as_input, error.message)
    for theirs, ours in RENAMED.items():
        param = re.sub(rf"^{theirs}\b", ours, param)
        message = re.sub(rf"\b{theirs}\b", ours, message)
    return RequestError(message, param, error.code, error.status)
