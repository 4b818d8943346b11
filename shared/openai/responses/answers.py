"""The answer of /v1/responses as OpenAI's clients see it, and the events that stream it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from shared.openai.completions.answers import CompletionUsage
from shared.openai.event_json import event_json
from shared.openai.responses.requests import ResponseRequest
from shared.openai.shown_text import ShownToken
from shared.protocol.offline.batches import Usage
from shared.protocol.sampling import FinishReason

OUTPUT_INDEX = CONTENT_INDEX = 0  # there is one message of one text
RESPONSE_PREFIX = "resp_"
REPEATED = ("instructions", "max_output_tokens", "prompt_cache_key", "safety_identifier", "user")  # as in the body

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
        service_tier=completion.service_tier,
        store=store,
        temperature=completion.sampling.temperature,
        text={"format": body.text_format},
        top_p=completion.sampling.top_p,
        **{name: getattr(body, name) for name in REPEATED},
    )


def ended(
    begun: ModelResponse, text: str, finish_reason: FinishReason, usage: CompletionUsage, now_s: int | None
) -> ModelResponse:
    """Completed, or incomplete where the text was cut at its limit of tokens. ``now_s``: None where nobody knows."""
    status, is_cut = status_of(finish_reason), finish_reason is FinishReason.LENGTH
    return replace(
        begun,
        status=status,
        output=[message_of(begun, status, text)],
        usage=Usage.of(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
        incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
        completed_at=None if is_cut else now_s,
    )


def message_of(response: ModelResponse, status: Status, text: str | None = None) -> OutputMessage:
    """The output; None is a message without content yet."""
    id = f"msg_{response.id.removeprefix(RESPONSE_PREFIX)}"
    return OutputMessage(id, status, [] if text is None else [OutputText(text)])


class ResponseEvents:
    """Server-sent events of one answer, numbered from 0, in the order of OpenAI's API."""

    def __init__(self, begun: ModelResponse, now_s: Callable[[], float]) -> None:
        """``now_s``: unix time, asked at the end."""
        self._begun = begun
        self._now_s = now_s
        self._number = 0
        self._texts: list[str] = []
        self._finish_reason: FinishReason | None = None
        self._item = message_of(begun, "in_progress")
        self._place = {"item_id": self._item.id, "output_index": OUTPUT_INDEX, "content_index": CONTENT_INDEX}

    def start(self) -> bytes:
        """All that comes before the first text."""
        return (
            self._event("response.created", response=self._begun)
            + self._event("response.in_progress", response=self._begun)
            + self._event("response.output_item.added", output_index=OUTPUT_INDEX, item=self._item)
            + self._event("response.content_part.added", **self._place, part=OutputText(""))
        )

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        if not text:
            return b""
        self._texts.append(text)
        return self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """After the last text; there is one choice."""
        self._finish_reason = FinishReason(finish_reason)
        text = "".join(self._texts)
        item = message_of(self._begun, status_of(self._finish_reason), text)
        return (
            self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place, part=OutputText(text))
            + self._event("response.output_item.done", output_index=OUTPUT_INDEX, item=item)
        )

    def end(self, usage: CompletionUsage) -> bytes:
        """The last event."""
        assert self._finish_reason is not None, "it has finished"
        response = ended(self._begun, "".join(self._texts), self._finish_reason, usage, int(self._now_s()))
        return self._event(f"response.{response.status}", response=response)

    def fail(self, why: str) -> bytes:
        """The only end where there is no whole answer."""
        failed = replace(self._begun, status="failed", error=ResponseError("server_error", why))
        return self._event("response.failed", response=failed)

    def _event(self, type: str, **fields: Any) -> bytes:
        data = event_json({"type": type, "sequence_number": self._number} | fields)
        self._number += 1
        return b"event: " + type.encode() + b"\ndata: " + data + b"\n\n"


def status_of(finish_reason: FinishReason) -> Status:
    """Of an answer, and of its message."""
    return "incomplete" if finish_reason is FinishReason.LENGTH else "completed"
