"""Tool calls as an answer tells them, whole or streamed."""

from __future__ import annotations

from hashlib import blake2b

from shared.openai.tools.calls import ToolCall
from shared.openai.tools.definitions import CalledFunction, MessageToolCall
from shared.protocol.sampling import FinishReason
from shared.text.tool_format import ToolFormat

TOOL_CALLS = "tool_calls"  # why an answer ended that calls tools
MISTRAL_ID_LENGTH = 9  # its templates take no other


def message_call(call: ToolCall, format: ToolFormat, request_id: str, choice: int, number: int) -> MessageToolCall:
    """``number`` counts the calls of a choice. The id is the same whenever the same answer is written."""
    stem = f"{request_id}-{choice}" if choice else request_id
    digest = blake2b(f"{stem}:{number}".encode(), digest_size=12).hexdigest()
    id = digest[:MISTRAL_ID_LENGTH] if format is ToolFormat.MISTRAL else f"call_{digest}"
    return MessageToolCall(id, CalledFunction(call.name, call.arguments))


def finish_reason_of(finish_reason: FinishReason, num_calls: int) -> str:
    """An answer that is cut at its limit of tokens says so, calls or not."""
    return TOOL_CALLS if num_calls and finish_reason is FinishReason.STOP else finish_reason.value
