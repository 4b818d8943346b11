"""The ``input`` of a request to /v1/responses, as the messages of a chat completion."""

from typing import Any

import msgspec

from shared.openai.completions.prompts import ContentPart, content_text
from shared.openai.errors import RequestError

TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(msgspec.Struct):
    """One item of the input; without a type it is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None


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
    return {"role": item.role, "content": content_text(f"{where}.content", item.content, TEXT_PARTS)}
