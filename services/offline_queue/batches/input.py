"""The lines of a batch's input file: which are requests, which fail, and which make the whole batch invalid.

A line that is no well-formed batch line (its JSON, custom_id, method, url, model, or a wish to stream) fails the
validation of the batch: nothing of it runs. A body that is well formed but cannot be served (too long, a parameter out
of range or not supported, another model of the stack than the batch's) fails alone, and the error file tells why.
OpenAI draws the same line, but fails a batch of several models."""

import hashlib
import logging
from dataclasses import dataclass, field

import msgspec

from services.offline_queue.batches.lines import BatchLine
from services.offline_queue.batches.results import failed_result
from shared.errors import SlackwaterError
from shared.lines import BYTE_ORDER_MARK, MAX_LINE_BYTES
from shared.openai.completions.requests import CompletionRequest, parse_completion
from shared.openai.embeddings.requests import EMBEDDINGS, parse_embedding
from shared.openai.errors import RequestError
from shared.openai.responses.answers import ModelResponse, new_response
from shared.openai.responses.requests import RESPONSES, parse_response
from shared.openai.served_model import MODEL_MISMATCH, ServedModel
from shared.protocol.codec import encode
from shared.protocol.offline.batches import BatchRecord, LineError
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.requests import GenerateRequest
from shared.scheduling.request import Kind
from shared.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_LINES = 50_000  # OpenAI's limit
LINES_A_TRACED = 100  # of a traced batch, the first among them
MAX_CUSTOM_ID_LENGTH = 512  # characters
MAX_LOGPROBS = 400_000  # of one result, about 6 MB
USUAL_SAMPLING_BYTES = 256  # encoded; a waiting request is counted with as many
MAX_ERRORS = 100  # a batch's record is one KV value; more errors of one file say little
MISSING = "missing_required_parameter"


class InvalidLineError(SlackwaterError):
    """A line that makes the whole batch invalid."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(slots=True)
class ParsedLines:
    """What some lines of the input came to; ``lines`` describes the requests and the failures alike."""

    requests: list[OfflineRequest] = field(default_factory=list)
    failures: list[OfflineResult] = field(default_factory=list)
    lines: list[BatchLine] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)


class _Line(msgspec.Struct):
    custom_id: str | None = None
    method: str | None = None
    url: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Line)


class BatchInput:
    """Reads one batch's lines, a group at a time, in one thread at a time."""

    def __init__(self, record: BatchRecord, tokenizer: Tokenizer, model: ServedModel) -> None:
        self._record = record
        self._tokenizer = tokenizer
        self._model = model.only(record.adapter)
        self._custom_ids: set[bytes] = set()  # digests: an id may be long

    def parse(self, group: list[tuple[int, bytes]]) -> ParsedLines:
        """``group``: (line, its bytes) in the order of the file; empty lines are passed over, but for one
        that is too many."""
        parsed = ParsedLines()
        for line, data in group:
            if line == 1:
                data = data.removeprefix(BYTE_ORDER_MARK)
            if data.strip() or line > MAX_LINES + 1:
                try:
                    self._parse_line(parsed, line, data)
                except InvalidLineError as error:
                    parsed.errors.append(LineError(error.code, error.message, line, error.param))
        return parsed

    def _parse_line(self, parsed: ParsedLines, line: int, data: bytes) -> None:
        custom_id, body = self._read_envelope(line, data)
        request_id = f"{self._record.id}.{line}"
        try:
            completion, response = self._read_body(line, body)
            sampling = msgspec.structs.replace(completion.sampling, kv_owner=self._record.kv_owner)
        except RequestError as error:
            parsed.failures.append(failed_result(request_id, error))
            parsed.lines.append(BatchLine(line, custom_id))
            return
        generate = GenerateRequest(
            request_id=request_id,
            kind=Kind.OFFLINE,
            prompt_token_ids=completion.prompt_token_ids,
            sampling=sampling,
            arrival_s=float(self._record.created_at),
            traceparent=self._record.traceparent if line % LINES_A_TRACED == 1 else "",
        )
        parsed.requests.append(OfflineRequest(generate, self._record.id, line, custom_id, completion.model))
        parsed.lines.append(_described(line, custom_id, completion, response))

    def _read_envelope(self, line: int, data: bytes) -> tuple[str, bytes]:
        """custom_id and body. Raises InvalidLineError."""
        _demand(line <= MAX_LINES, "too_many_lines", f"The file has more than {MAX_LINES} lines.")
        _demand(len(data) <= MAX_LINE_BYTES, "line_too_long", f"This line is longer than {MAX_LINE_BYTES} bytes.")
        envelope, endpoint = _decode(data), self._record.endpoint
        for name in ("custom_id", "method", "url"):
            _demand(bool(getattr(envelope, name)), MISSING, f"{name} is missing or empty.", name)
        assert envelope.custom_id is not None
        _demand(envelope.method == "POST", "invalid_method", "The method must be POST.", "method")
        _demand(envelope.url == endpoint, "invalid_url", f"The url must be the batch's endpoint, {endpoint}.", "url")
        body = bytes(envelope.body)
        _demand(body != b"null", MISSING, "body is missing or empty.", "body")
        _demand(body.startswith(b"{"), "invalid_type", "The body must be a JSON object.", "body")
        self._check_custom_id(envelope.custom_id)
        return envelope.custom_id, body

    def _check_custom_id(self, custom_id: str) -> None:
        too_long = f"The custom_id is longer than {MAX_CUSTOM_ID_LENGTH} characters."
        _demand(len(custom_id) <= MAX_CUSTOM_ID_LENGTH, "invalid_custom_id", too_long, "custom_id")
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        repeated = f"The custom_id {custom_id!r} of this line was used before in this batch."
        _demand(digest not in self._custom_ids, "duplicate_custom_id", repeated, "custom_id")
        self._custom_ids.add(digest)

    def _read_body(self, line: int, body: bytes) -> tuple[CompletionRequest, ModelResponse | None]:
        """The request, and of /v1/responses the answer as it begins. Raises RequestError for this request alone,
        InvalidLineError for the batch."""
        try:
            completion, response = self._parse(line, body)
        except RequestError as error:
            if error.param != "model" or error.code == MODEL_MISMATCH:
                raise
            raise InvalidLineError(error.code or MISSING, error.message, "body.model") from error
        except Exception as error:  # one line must not stop the service that every batch shares
            logger.exception("a batch line could not be read", extra={"batch_id": self._record.id, "line": line})
            raise RequestError(f"the request could not be read: {error!r}", status=500) from error
        _demand(not completion.stream, "unsupported_value", "A batch does not stream; leave it out.", "body.stream")
        if completion.other_prompts:
            field = "input" if completion.endpoint == EMBEDDINGS else "prompt"
            raise RequestError(f"{field} has {len(completion.prompts)} {field}s; write a line for each", field)
        _check_logprobs(completion)
        return completion, response

    def _parse(self, line: int, body: bytes) -> tuple[CompletionRequest, ModelResponse | None]:
        record = self._record
        if record.endpoint == EMBEDDINGS:
            return parse_embedding(body, self._tokenizer, self._model), None
        if record.endpoint != RESPONSES:
            return parse_completion(record.endpoint, body, self._tokenizer, self._model), None
        asked = parse_response(body, self._tokenizer, self._model)
        return asked.completion, new_response(asked, f"{record.id}_{line}", record.created_at)


def _demand(holds: bool, code: str, message: str, param: str | None = None) -> None:
    """Raises InvalidLineError where it does not hold."""
    if not holds:
        raise InvalidLineError(code, message, param)


def _described(line: int, custom_id: str, completion: CompletionRequest, response: ModelResponse | None) -> BatchLine:
    """Without what no result needs."""
    sampling = completion.sampling
    kept = msgspec.structs.replace(sampling, grammar="", logit_bias=(), allowed_token_ids=(), bad_words=())
    num_bytes = max(0, len(encode(sampling)) - USUAL_SAMPLING_BYTES)
    num_prompt_tokens, tools = len(completion.prompt_token_ids), completion.tools
    return BatchLine(line, custom_id, num_prompt_tokens, kept, tools, num_bytes, response, completion.reasoning)


def _check_logprobs(completion: CompletionRequest) -> None:
    """A result is one message."""
    sampling = completion.sampling
    num_tokens, num_prompt_tokens = sampling.n * sampling.max_tokens, len(completion.prompt_token_ids)
    num_own = 0 if sampling.logprobs is None else num_tokens * (1 + sampling.logprobs)
    num_of_prompt = 0 if sampling.prompt_logprobs is None else num_prompt_tokens * (1 + sampling.prompt_logprobs)
    if num_own + num_of_prompt > MAX_LOGPROBS:
        of_prompt = f" and {num_of_prompt} of the prompt" if num_of_prompt else ""
        raise RequestError(
            f"{num_tokens} tokens with {1 + (sampling.logprobs or 0)} log probabilities each{of_prompt} are more than "
            f"the {MAX_LOGPROBS} of one line; ask for fewer tokens or top_logprobs",
            "logprobs",
        )


def _decode(data: bytes) -> _Line:
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        if not data.lstrip().startswith(b"{"):
            raise InvalidLineError("invalid_json_line", "This line is not a JSON object.") from error
        what, _, path = str(error).partition(" - at `$.")
        raise InvalidLineError("invalid_type", f"{what}.", path.rstrip("`") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidLineError("invalid_json_line", "This line is not parseable as valid JSON.") from error
