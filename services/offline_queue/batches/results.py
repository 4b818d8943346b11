"""The lines of a batch's output and error files."""

from typing import Any

import msgspec

from services.offline_queue.batches.lines import BatchLine
from shared.bus import Stored
from shared.openai.completions.answers import AnswerHead, Choice, Completion, CompletionUsage, completion_body
from shared.openai.completions.requests import CHAT
from shared.openai.embeddings.answers import EmbeddingList, EmbeddingUsage, embeddings_body
from shared.openai.errors import MAX_MESSAGE_LENGTH, RequestError
from shared.openai.objects import error_body
from shared.openai.responses.answers import ModelResponse, ended
from shared.openai.shown_prompt import ShownPrompt
from shared.openai.shown_text import LogprobsShape, shown_output
from shared.protocol import subjects
from shared.protocol.access.key_usage import INSUFFICIENT_QUOTA
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.sampling import EmbeddingShape, FinishReason
from shared.scheduling.packed_prompt import unpack_tokens
from shared.text.tokenizer import Tokenizer

UNFINISHED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}
LOST = ("server_error", "The result of this request is not in the store.")

_encoder = msgspec.json.Encoder()


class FailedResponse(msgspec.Struct, frozen=True):
    """What ``OfflineResult.error`` holds for a request that failed while its line was read."""

    status_code: int
    body: dict[str, Any]  # OpenAI's error shape


_failed_decoder = msgspec.json.Decoder(FailedResponse)


def failed_result(request_id: str, error: RequestError) -> OfflineResult:
    """The result of a request that cannot be served."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = error_body(error.message, kind, error.param, error.code)
    failed = FailedResponse(error.status, body)
    return OfflineResult(request_id, [], FinishReason.ERROR, error=_encoder.encode(failed).decode())


def out_of_budget(message: str) -> str:
    """What the result of each request holds as its error whose key has no tokens left."""
    body = error_body(message, INSUFFICIENT_QUOTA, None, INSUFFICIENT_QUOTA)
    return _encoder.encode(FailedResponse(429, body)).decode()


def unreadable_result(subject: str) -> OfflineResult:
    """In place of a stored one that does not parse: its line can have no other."""
    message = "The stored result of this request cannot be read."
    return OfflineResult(subjects.request_of(subject), [], FinishReason.ERROR, error=message)


def own_result(stored: Stored[OfflineResult]) -> OfflineResult:
    """It; where it says that it is of another request than its place, one that cannot be read."""
    is_own = stored.message.request_id == subjects.request_of(stored.subject)
    return stored.message if is_own else unreadable_result(stored.subject)


def unreadable_failure(subject: str) -> OfflineFailure:
    """In place of a stored one that does not parse."""
    return OfflineFailure(subjects.request_of(subject), "The stored reason cannot be read.")


class ResultWriter:
    """Writes results of one batch as lines of its files."""

    def __init__(self, record: BatchRecord, ending: str, tokenizer: Tokenizer) -> None:
        """``ending``: the final status that the batch is about to have; it says why a line has no result."""
        self._record = record
        self._tokenizer = tokenizer
        self._logprobs = LogprobsShape(tokenizer, record.endpoint == CHAT)
        self._unfinished = UNFINISHED.get(ending, LOST)

    def output_line(self, line: BatchLine, result: OfflineResult) -> bytes:
        """Of a completed request; ends with a newline."""
        body = self._body(line, result)
        return self._line(line, {"status_code": 200, "request_id": result.request_id, "body": body}, None)

    def _body(self, line: BatchLine, result: OfflineResult) -> ModelResponse | EmbeddingList | Completion:
        assert line.sampling is not None
        if line.response is not None:
            return self._response(line, line.response, result)
        if line.sampling.embedding is not None:
            return self._embedding(line, line.sampling.embedding, result)
        record, shows_calls = self._record, line.tools is not None
        prompt = ShownPrompt(unpack_tokens(result.prompt_token_ids), result.prompt_scores)
        choices = [Choice.of(output, line.sampling, self._logprobs, shows_calls, prompt) for output in result.choices]
        num_output_tokens = sum(len(output.token_ids) for output in result.choices)
        head = AnswerHead(record.endpoint, result.request_id, record.created_at, record.model or "")
        usage = CompletionUsage.of(line.num_prompt_tokens, num_output_tokens, result.num_cached_tokens)
        return completion_body(head, choices, usage, line.tools, line.reasoning)

    def _response(self, line: BatchLine, begun: ModelResponse, result: OfflineResult) -> ModelResponse:
        assert line.sampling is not None
        output = result.choices[0]
        text, _ = shown_output(self._tokenizer, output, line.sampling, shows_calls=line.tools is not None)
        usage = CompletionUsage.of(line.num_prompt_tokens, len(output.token_ids), result.num_cached_tokens)
        return ended(begun, text, output.finish_reason, usage, None, line.tools, line.reasoning)

    def _embedding(self, line: BatchLine, shape: EmbeddingShape, result: OfflineResult) -> EmbeddingList:
        assert result.embedding is not None, "one without its embedding has failed"
        usage = EmbeddingUsage.of(line.num_prompt_tokens, result.num_cached_tokens)
        return embeddings_body([result.embedding], shape, self._record.model or "", usage)

    def error_line(self, line: BatchLine, result: OfflineResult | None) -> bytes:
        """Of a request that failed, or that has no result; ends with a newline."""
        if result is None or result.finish_reason is FinishReason.ABORT:
            code, message = self._unfinished
            return self._line(line, None, {"code": code, "message": message})
        try:
            failed = _failed_decoder.decode(result.error)
        except (msgspec.DecodeError, RecursionError):  # an executor's own words
            failed = FailedResponse(500, error_body(result.error[:MAX_MESSAGE_LENGTH], "server_error"))
        response = {"status_code": failed.status_code, "request_id": result.request_id, "body": failed.body}
        return self._line(line, response, None)

    def _line(self, line: BatchLine, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
        written = {
            "id": f"batch_req_{self._record.id.removeprefix('batch_')}_{line.line}",
            "custom_id": line.custom_id,
            "response": response,
            "error": error,
        }
        return _encoder.encode(written) + b"\n"
