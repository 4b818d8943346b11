"""Items of a response's input as the messages of a chat. What an assistant thinks, says and calls, one right behind the
other, is one message there."""

from typing import Any

import msgspec

from shared.openai.completions.prompts import ContentPart, content_text
from shared.openai.errors import RequestError, decode_body

TEXT_PARTS = ("input_text", "output_text", "text")
REFERENCE = "item_reference"
SUPPORTED = "message, reasoning, function_call and function_call_output are"

Messages = list[dict[str, Any]]  # of a chat completion


class InputItem(msgspec.Struct):
    """One item of the input; without a type it is a message. ``content`` is of that, and of ``reasoning``; ``call_id``
    is of a ``function_call``, with ``name`` and ``arguments``, and of a ``function_call_output``, with ``output``. An
    ``item_reference`` stands for the item of a stored response's output that has its ``id``."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None


StoredItems = dict[str, InputItem]  # by their ids


class _Referring(msgspec.Struct):
    input: Any = None


class _Answered(msgspec.Struct):
    output: list[InputItem]


_referring_decoder = msgspec.json.Decoder(_Referring)
_answered_decoder = msgspec.json.Decoder(_Answered)


def referred_ids(body: bytes) -> list[str]:
    """Of the items that a request's input refers to; what else is in it may be wrong. Raises RequestError."""
    items = decode_body(body, _referring_decoder).input
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return [item["id"] for item in found if item.get("type") == REFERENCE and isinstance(item.get("id"), str)]


def items_of(response: bytes | msgspec.Raw) -> StoredItems:
    """The output of a stored response, which is JSON."""
    return {item.id: item for item in _answered_decoder.decode(response).output if item.id is not None}


class ChatMessages:
    """``places``: where in the input stands what a chat has at a place."""

    def __init__(self, items: list[InputItem], stored: StoredItems | None = None) -> None:
        """``stored``: those that are referred to; None where no item is stored. Raises RequestError."""
        self.messages: Messages = []
        self.places: dict[str, str] = {}
        self._stored = stored
        for index, item in enumerate(items):
            self._add(f"input[{index}]", item)

    def _add(self, where: str, item: InputItem) -> None:
        if item.type == REFERENCE:
            item = self._referred(where, item)
        if item.type == "message":
            role, content = _required(where, item, "role"), content_text(f"{where}.content", item.content, TEXT_PARTS)
            if role == "assistant" and self._is_thinking:
                self.messages[-1]["content"] = content
            else:
                self._add_message(where, {"role": role, "content": content})
        elif item.type == "reasoning":
            thought = content_text(f"{where}.content", item.content or "", ("reasoning_text",))
            if thought:  # what another server has encrypted says nothing here
                self._add_message(where, {"role": "assistant", "content": "", "reasoning": thought})
        elif item.type == "function_call":
            self._add_call(where, item)
        elif item.type == "function_call_output":
            call_id, _ = _required(where, item, "call_id"), _required(where, item, "output")
            output = content_text(f"{where}.output", item.output, TEXT_PARTS)
            self.places[f"messages[{len(self.messages)}].tool_call_id"] = f"{where}.call_id"
            self._add_message(where, {"role": "tool", "tool_call_id": call_id, "content": output})
        else:
            message = f"an input item of type {item.type!r} is not supported; {SUPPORTED}"
            raise RequestError(message, f"{where}.type", "unsupported_value")

    def _referred(self, where: str, item: InputItem) -> InputItem:
        if self._stored is None:
            raise RequestError("items are not stored here; send the item itself", f"{where}.type", "unsupported_value")
        id = _required(where, item, "id")
        if id not in self._stored:
            raise RequestError(f"no such item: {id}; send the item itself", f"{where}.id", "not_found", 404)
        return self._stored[id]

    def _add_message(self, where: str, message: dict[str, Any]) -> None:
        self.places[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)

    def _add_call(self, where: str, item: InputItem) -> None:
        name, arguments = _required(where, item, "name"), _required(where, item, "arguments")
        call = chat_call(_required(where, item, "call_id"), name, arguments)
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add_message(where, {"role": "assistant", "content": ""})
        calls = self.messages[-1].setdefault("tool_calls", [])
        self.places[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}].function"] = where
        calls.append(call)

    @property
    def _is_thinking(self) -> bool:
        """The last message is a thought that nothing has followed yet."""
        last = self.messages[-1] if self.messages else {}
        return "reasoning" in last and not last["content"] and "tool_calls" not in last


def chat_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function as an assistant's message has it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _required(where: str, item: InputItem, name: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise RequestError(f"{where}.{name} is missing", f"{where}.{name}")
    return value
