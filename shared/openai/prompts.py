"""What a request asks to be continued: a conversation, a text, or token ids."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.openai.errors import RequestError
from shared.tokenizer import Tokenizer

TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ContentPart(msgspec.Struct):
    """One part of a message; only text is supported."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[Any] | None = None


def chat_prompt(messages: list[Message] | None, tokenizer: Tokenizer) -> list[int]:
    """Token ids of the conversation, ready for the assistant's turn. Raises RequestError and ChatTemplateError."""
    if not messages:
        raise RequestError("messages is missing or empty; give at least one message", "messages")
    return tokenizer.apply_chat_template([_template_message(index, message) for index, message in enumerate(messages)])


def text_prompt(prompt: Any, tokenizer: Tokenizer) -> list[int]:
    """Token ids of one prompt: a text, token ids, or a list of one of these. Raises RequestError."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise RequestError(f"prompt has {len(prompt)} prompts; send one per request", "prompt")
        prompt = prompt[0]
    if not isinstance(prompt, str | list):
        raise RequestError("prompt is missing; give a text or a list of token ids", "prompt")
    if not prompt:
        raise RequestError("prompt is empty", "prompt")
    if isinstance(prompt, str):
        return _encode(prompt, tokenizer)
    _check_token_ids(prompt, tokenizer.vocab_size)
    return prompt


def _encode(prompt: str, tokenizer: Tokenizer) -> list[int]:
    token_ids = tokenizer.encode(prompt)
    if not token_ids:
        raise RequestError("prompt holds no character that the model's vocabulary knows", "prompt")
    return token_ids


def _check_token_ids(token_ids: list[Any], vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int:
            raise RequestError(f"prompt[{index}] is not a token id", f"prompt[{index}]")
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"token id {token_id} is outside the vocabulary of {vocab_size}", f"prompt[{index}]")


def _template_message(index: int, message: Message) -> dict[str, str]:
    where = f"messages[{index}]"
    role = TEMPLATE_ROLES.get(message.role)
    if role is None:
        known = ", ".join(TEMPLATE_ROLES)
        raise RequestError(f"the role {message.role!r} is not supported; use one of {known}", f"{where}.role")
    if message.tool_calls:
        raise RequestError("tool calls are not supported", f"{where}.tool_calls")
    return {"role": role, "content": _content_text(where, message.content)}


def _content_text(where: str, content: str | list[ContentPart] | None) -> str:
    if content is None:
        raise RequestError("the message has no content", f"{where}.content")
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"content of type {part.type!r} is not supported; only text is", f"{where}.content[{index}]"
            )
    return "".join(part.text or "" for part in content)
