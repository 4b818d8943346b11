"""The answer of /v1/responses as OpenAI's clients see it."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from shared.openai.completions.answers import CompletionUsage
from shared.openai.reasoning import Reasoning
from shared.openai.responses.output import (
    RESPONSE_PREFIX,
    FunctionCall,
    OutputItem,
    OutputParser,
    Piece,
    Status,
    next_item,
    num_calls,
)
from shared.openai.responses.requests import ReasoningOptions, ResponseRequest
from shared.openai.responses.tools import FunctionTool, shown_tool_choice
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import finish_reason_of
from shared.protocol.offline.batches import Usage
from shared.protocol.sampling import FinishReason

REPEATED = ("instructions", "max_output_tokens", "prompt_cache_key", "safety_identifier", "user")  # as in the body


class ResponseError(msgspec.Struct, frozen=True):
    """Why the server could not go on with it."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the output is cut."""

    reason: str


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response. Times are unix seconds. ``store``: whether it can be asked for again, and gone on from."""

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
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None
    reasoning: ReasoningOptions = ReasoningOptions()
    safety_identifier: str | None
    service_tier: str
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None


def new_response(request: ResponseRequest, request_id: str, created_s: int, store: bool = False) -> ModelResponse:
    """The answer without any output yet. Times are unix seconds. ``store``: it is going to be stored."""
    body, completion = request.body, request.completion
    return ModelResponse(
        id=f"{RESPONSE_PREFIX}{request_id}",
        created_at=created_s,
        status="in_progress",
        metadata=completion.metadata or {},
        model=completion.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id or None,
        reasoning=body.reasoning or ReasoningOptions(),
        service_tier=completion.service_tier,
        store=store,
        temperature=completion.sampling.temperature,
        text={"format": body.text_format},
        tool_choice=shown_tool_choice(body.tool_choice),
        tools=[replace(tool, strict=bool(tool.strict)) for tool in body.tools or ()],
        top_p=completion.sampling.top_p,
        **{name: getattr(body, name) for name in REPEATED},
    )


def ended(
    begun: ModelResponse,
    text: str,
    finish_reason: FinishReason,
    usage: CompletionUsage,
    now_s: int | None,
    tools: ToolUse | None = None,
    reasoning: Reasoning | None = None,
) -> ModelResponse:
    """Completed, or incomplete where the text was cut at its limit of tokens. ``now_s``: None where nobody knows;
    ``tools``: whose calls are to be found in the text; ``reasoning``: that it may have before."""
    output: list[OutputItem] = []
    for piece in _joined(OutputParser(reasoning, tools).push(text, is_whole=True)):
        output.append(next_item(begun.id, output, piece, tools))
    is_cut = is_cut_by(finish_reason, output, tools)
    if is_cut and not isinstance(output[-1], FunctionCall):
        output[-1] = replace(output[-1], status="incomplete")
    return with_output(begun, output, is_cut, usage, now_s)


def with_output(
    begun: ModelResponse, output: list[OutputItem], is_cut: bool, usage: CompletionUsage, now_s: int | None
) -> ModelResponse:
    """With all items. ``now_s`` as of ``ended``."""
    return replace(
        begun,
        status="incomplete" if is_cut else "completed",
        output=output,
        usage=Usage.of(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
        incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
        completed_at=None if is_cut else now_s,
    )


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Each an item of its own; one at least."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined or [""]


def is_cut_by(finish_reason: FinishReason, output: Sequence[OutputItem], tools: ToolUse | None) -> bool:
    """Whether the output is not whole."""
    return finish_reason_of(finish_reason, num_calls(output), tools) == FinishReason.LENGTH
