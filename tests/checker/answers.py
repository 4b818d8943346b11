"""The text of an answer, of whatever kind it is."""

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
