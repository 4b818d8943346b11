"""The answer of /v1/responses as OpenAI's clients see it."""

from typing import Any, Literal

import msgspec

from shared.protocol.batches import Usage

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True):
    """A message's content."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class OutputMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    id: str
    status: Status
    content: list[OutputText]
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class ResponseError(msgspec.Struct, frozen=True):
    """Why the server could not go on with it."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the output is cut."""

    reason: str


class Reasoning(msgspec.Struct, frozen=True):
    """There is none apart from the output."""

    effort: None = None
    summary: None = None


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response. Times are unix seconds. It is not stored: ``store`` is false whatever was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None
    reasoning: Reasoning = Reasoning()
    safety_identifier: str | None
    service_tier: str
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None
