"""The ``input`` of a request to /v1/responses, as the messages of a chat completion."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.openai.errors import RequestError

TEXT_PARTS = ("input_text", "output_text", "text")


class InputPart(msgspec.Struct):
    """One part of a message; only text is supported."""

    type: str
    text: str | None = None


class InputItem(msgspec.Struct):
    """One item of the input; without a type it is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None


def chat_messages(input: str | list[InputItem] | None, instructions: str | None) -> list[dict[str, Any]]:
    """One message for the instructions, where there are some, and one for each item. Raises RequestError."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if not input:
        raise RequestError("input is missing or empty; give a text or a list of items", "input")
    if isinstance(input, str):
        return [*messages, {"role": "user", "content": input}]
    return messages + [_chat_message(f"input[{index}]", item) for index, item in enumerate(input)]


def _chat_message(where: str, item: InputItem) -> dict[str, Any]:
    if item.type == "item_reference":
        raise RequestError("items are not stored here; send the item itself", f"{where}.type", "unsupported_value")
    if item.type != "message":
        raise RequestError(
            f"an input item of type {item.type!r} is not supported; only messages are",
            f"{where}.type",
            "unsupported_value",
        )
    if item.role is None:
        raise RequestError(f"{where}.role is missing", f"{where}.role")
    return {"role": item.role, "content": _content(f"{where}.content", item.content)}


def _content(where: str, content: str | list[InputPart] | None) -> str:
    if content is None:
        raise RequestError("the message has no content", where)
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS or part.text is None:
            raise RequestError(f"content of type {part.type!r} is not supported; only text is", f"{where}[{index}]")
    return "".join(part.text or "" for part in content)
