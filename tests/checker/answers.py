"""What an answer says, of whatever kind it is: its text, why it ended, and what it took."""

from __future__ import annotations

import json
from typing import Any


def answer_text(choice: dict[str, Any]) -> str:
    """Of a choice of a completion, of a chat completion or of a chunk of either. Calls of tools are text as well: names
    and arguments, since their ids are made anew each time."""
    if "text" in choice:
        return str(choice["text"])
    message = choice["delta"] if "delta" in choice else choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = "".join(json.dumps([call["name"], call["arguments"]]) for call in calls)
    return (message.get("content") or "") + said


def answer_end(finish_reason: str | None, usage: dict[str, Any] | None) -> str:
    """What stands behind the text: why it ended, and of how many tokens prompt and answer are."""
    counted = usage or {}
    return f"\n<{finish_reason}: {counted.get('prompt_tokens')} + {counted.get('completion_tokens')} tokens>"


def whole_answer(body: dict[str, Any]) -> str:
    """Of a body that is not streamed: text and end."""
    choice = body["choices"][0]
    return answer_text(choice) + answer_end(choice.get("finish_reason"), body.get("usage"))
