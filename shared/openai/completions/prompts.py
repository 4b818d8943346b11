"""What a request asks to be continued: a conversation, a text, or token ids."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError
from shared.openai.tools.definitions import NO_TOOLS, MessageToolCall, Tool, template_calls, template_tools
from shared.text.chat_options import ChatOptions
from shared.text.tokenizer import CHAT_DEFAULTS, Tokenizer

TEMPLATE_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}

MAX_PROMPTS = 64  # of one request
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def prompt_schema(most: int) -> dict[str, Any]:
    """Of up to so many prompts."""
    return {
        "description": "A text or token ids, or a list of such; a line of a batch has one.",
        "anyOf": [
            {"type": "string", "minLength": 1},
            _TOKEN_IDS,
            {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": most},
            {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": most},
        ],
    }


PROMPT_SCHEMA = prompt_schema(MAX_PROMPTS)


class ContentPart(msgspec.Struct):
    """One part of a message; only text is supported."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One turn of a conversation."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(TEMPLATE_ROLES)})]
    content: str | list[ContentPart] | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None  # of an assistant, for templates that show it; the latter is its older name
    reasoning_content: str | None = None
    function_call: None = None  # OpenAI's older tool call, and an answer that was spoken: not served
    audio: None = None


def chat_prompt(
    messages: list[Message] | None,
    tokenizer: Tokenizer,
    most: int,
    tools: list[Tool] | None = None,
    options: ChatOptions = CHAT_DEFAULTS,
) -> list[int]:
    """Token ids of the conversation, ready for the assistant's turn, or as ``options`` say. ``most``: as
    ``Tokenizer.encode`` has it. Raises RequestError, ChatTemplateError and TextTooLongError."""
    if not messages:
        raise RequestError("messages is missing or empty; give at least one message", "messages")
    called: dict[str, str] = {}
    rendered = [_template_message(f"messages[{index}]", each, called) for index, each in enumerate(messages)]
    if called and tokenizer.tool_format is None:
        raise RequestError(f"tool calls are not supported: {NO_TOOLS}", "messages", "unsupported_value")
    return tokenizer.apply_chat_template(rendered, template_tools(tools) if tools else None, options, most)


def text_prompts(
    prompt: Any,
    tokenizer: Tokenizer,
    most: int,
    add_special_tokens: bool = True,
    field: str = "prompt",
    max_prompts: int = MAX_PROMPTS,
) -> list[list[int]]:
    """Token ids of each: of a text, of token ids, or of a list of up to ``max_prompts`` such. ``most``: as
    ``Tokenizer.encode`` has it; ``field``: what the body calls it. Raises RequestError and TextTooLongError."""
    read = partial(_text_prompt, tokenizer=tokenizer, most=most, add_special_tokens=add_special_tokens)
    if not (isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)):
        return [read(prompt, field)]
    if len(prompt) > max_prompts:
        raise RequestError(f"{field} has {len(prompt)} {field}s; a request takes {max_prompts} at most", field)
    return [read(each, f"{field}[{index}]") for index, each in enumerate(prompt)]


def _text_prompt(prompt: Any, field: str, tokenizer: Tokenizer, most: int, add_special_tokens: bool) -> list[int]:
    if not isinstance(prompt, str | list):
        raise RequestError(f"{field} is missing; give a text or a list of token ids", field)
    if not prompt:
        raise RequestError(f"{field} is empty", field)
    if isinstance(prompt, list):
        _check_token_ids(prompt, tokenizer.vocab_size, field)
        return prompt
    token_ids = tokenizer.encode(prompt, add_special_tokens, most)
    if not token_ids:
        raise RequestError(f"{field} holds no character that the model's vocabulary knows", field)
    return token_ids


def _check_token_ids(token_ids: list[Any], vocab_size: int, field: str) -> None:
    for index, token_id in enumerate(token_ids):
        where = f"{field}[{index}]"
        if type(token_id) is not int:
            raise RequestError(f"{where} is not a token id", where)
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"token id {token_id} is outside the vocabulary of {vocab_size}", where)


def _template_message(where: str, message: Message, called: dict[str, str]) -> dict[str, Any]:
    """``called``: the names of the functions that were called before, by the ids of the calls."""
    role = TEMPLATE_ROLES.get(message.role)
    if role is None:
        known = ", ".join(TEMPLATE_ROLES)
        raise RequestError(f"the role {message.role!r} is not supported; use one of {known}", f"{where}.role")
    if role == "tool":
        return _tool_message(where, message, called)
    if message.tool_calls and role != "assistant":
        raise RequestError("only messages of the assistant have tool calls", f"{where}.tool_calls")
    # The assistant's is empty where it called, was cut while it thought, or refused.
    has_none = role == "assistant" and message.content is None
    content = "" if has_none else content_text(f"{where}.content", message.content)
    if not message.tool_calls:
        return {"role": role, "content": content} | _reasoning(role, message)
    called.update((call.id, call.function.name) for call in message.tool_calls)
    calls = template_calls(f"{where}.tool_calls", message.tool_calls)
    return {"role": role, "content": content, "tool_calls": calls} | _reasoning(role, message)


def _reasoning(role: str, message: Message) -> dict[str, str]:
    """By both names, of which a template reads one."""
    reasoning = message.reasoning or message.reasoning_content
    return {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning and role == "assistant" else {}


def _tool_message(where: str, message: Message, called: dict[str, str]) -> dict[str, Any]:
    call_id = message.tool_call_id
    if call_id is None:
        raise RequestError(f"{where}.tool_call_id is missing", f"{where}.tool_call_id")
    if call_id not in called:
        raise RequestError("no message before this one has a tool call of this id", f"{where}.tool_call_id")
    content = content_text(f"{where}.content", message.content)
    return {"role": "tool", "tool_call_id": call_id, "name": called[call_id], "content": content}


def content_text(where: str, content: str | list[ContentPart] | None, kinds: Sequence[str] = ("text",)) -> str:
    """``kinds``: what parts with a text are called. Raises RequestError."""
    if content is None:
        raise RequestError("the message has no content", where)
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in kinds:
            raise RequestError(f"content of type {part.type!r} is not supported; only text is", f"{where}[{index}]")
        if part.text is None:
            raise RequestError(f"{where}[{index}].text is missing", f"{where}[{index}].text")
    return "".join(part.text or "" for part in content)
