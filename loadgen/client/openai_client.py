"""An OpenAI-compatible server, as a load generator sees it.

aiohttp carries the streams: with 300 of them open it took 11 us of processor time a chunk where httpx took 62, and we
often share the machine with what we measure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from loadgen.client.records import RequestRecord
from loadgen.client.sse import NULL, Chunk, EventParser
from loadgen.errors import ServerError
from shared.server_url import root_url, without_credentials

CONTROL_TIMEOUT_S = 60.0
UPLOAD_TIMEOUT_S = 600.0
MAX_ERROR_CHARS = 300
TAG = re.compile(r"<[^>]*>")
EVENT_STREAM = "text/event-stream"
SHOULD_RETRY = "x-should-retry"  # OpenAI's header of refusals

Answer = TypeVar("Answer", bound=msgspec.Struct)

OTHER_FAILURES = (OSError, TimeoutError, msgspec.DecodeError, ValueError)  # beside those of aiohttp


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of ``/v1/models``; ``max_model_len`` where the server tells it."""

    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


class _Named(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request ready to go: everything that takes time is done before its send time."""

    path: str
    body: bytes


class OpenAIClient:
    """Connections to one server, as many as there are requests under way. ``url`` is its address as it may be shown."""

    def __init__(self, url: str, timeout_s: float, api_key: str | None = None) -> None:
        self._root = root_url(url)
        self.url = without_credentials(self._root)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=None)
        self._too_late = f"no whole answer within {timeout_s:g} s"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._headers = headers | {"Content-Type": "application/json"}
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=True)

    async def __aenter__(self) -> OpenAIClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def stream(
        self, request: StreamRequest, record: RequestRecord, on_event: Callable[[], None] | None = None
    ) -> None:
        """Send now, and fill the record as the answer arrives. Failures end up in ``record.error``, never raised."""
        record.sent_s = time.perf_counter()
        try:
            async with self._session.post(
                self._root + request.path, data=request.body, headers=self._headers, timeout=self._timeout
            ) as response:
                record.status, record.retry_after_s = response.status, _retry_after_s(response)
                record.is_for_good = response.headers.get(SHOULD_RETRY) == "false"
                if response.status != 200:
                    record.error = f"{response.status}: {error_message(await response.read())}"
                else:
                    await self._read_stream(response, record, on_event)
        except (aiohttp.ClientError, *OTHER_FAILURES) as error:
            record.timed_out = isinstance(error, TimeoutError)
            why = self._too_late if record.timed_out else error
            record.error = f"{type(error).__name__}: {why}"[:MAX_ERROR_CHARS]
            is_lost = isinstance(error, aiohttp.ClientConnectionError | OSError) and not record.timed_out
            record.disconnected = is_lost and record.status is None
        record.finished_s = time.perf_counter()

    async def _read_stream(
        self, response: aiohttp.ClientResponse, record: RequestRecord, on_event: Callable[[], None] | None
    ) -> None:
        parser = EventParser()
        finished = False
        beginning = b""
        last_s = record.due_s
        async for data in response.content.iter_any():
            now_s = time.perf_counter()
            beginning = beginning or data
            for chunk in parser.feed(data):
                finished |= _note(chunk, record, now_s)
                last_s = now_s
            if on_event is not None:
                on_event()
        if record.error is None and not (finished or parser.done):
            is_stream = response.content_type == EVENT_STREAM
            what = "the stream ended before its last event"
            record.error = what if is_stream else f"no event stream: {error_message(beginning)}"
        elif record.output_tokens and not record.token_times_s:
            record.token_times_s.append(last_s)

    async def models(self) -> list[ModelCard]:
        """The server's models. Raises ServerError."""
        return as_type(await self.get_json("/v1/models"), _ModelList).data

    async def get_json(self, path: str) -> Any:
        """A GET's JSON. Raises ServerError for a status other than 200, or no answer."""
        return await self._json("GET", path)

    async def post_json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A POST's JSON. Raises ServerError for a status other than 200, or no answer."""
        return await self._json("POST", path, data=msgspec.json.encode(body or {}), headers=self._headers)

    async def upload(self, path: Path) -> str:
        """Upload a batch input file; returns its id. Raises ServerError."""
        with path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=path.name, content_type="application/jsonl")
            answer = await self._json("POST", "/v1/files", data=form, timeout=aiohttp.ClientTimeout(UPLOAD_TIMEOUT_S))
        return as_type(answer, _Named).id

    async def get_bytes(self, path: str) -> bytes:
        """A GET's body. Raises ServerError for a status other than 200, or no answer."""
        return await self._request("GET", path)

    async def delete(self, path: str) -> None:
        """Raises ServerError for a status other than 200, or no answer."""
        await self._request("DELETE", path)

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        body = await self._request(method, path, **options)
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise ServerError(f"{method} {self.url}{path} did not answer with JSON", 200) from error

    async def _request(self, method: str, path: str, **options: Any) -> bytes:
        options.setdefault("timeout", aiohttp.ClientTimeout(CONTROL_TIMEOUT_S))
        try:
            async with self._session.request(method, self._root + path, **options) as response:
                body = await response.read()
        except (aiohttp.ClientError, *OTHER_FAILURES) as error:
            is_unclear = isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError)  # says the URL alone
            reason = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            why = "write http://HOST:PORT, or https" if is_unclear else str(reason) or type(error).__name__
            raise ServerError(f"cannot reach {self.url}: {why}") from error
        if response.status != 200:
            message = f"{method} {self.url}{path} answered {response.status}: {error_message(body)}"
            raise ServerError(message, response.status, _retry_after_s(response))
        return body


def as_type(answer: Any, wanted: type[Answer]) -> Answer:
    """A server's JSON as the struct that it should be. Raises ServerError."""
    try:
        return msgspec.convert(answer, wanted)
    except msgspec.ValidationError as error:
        raise ServerError(f"the server's answer is not OpenAI's: {error}") from error


def _note(chunk: Chunk, record: RequestRecord, now_s: float) -> bool:
    """Write a chunk into the record; whether it ended its choice."""
    if chunk.error != NULL:
        record.error = error_message(bytes(chunk.error))
    if chunk.usage is not None:
        record.prompt_tokens = chunk.usage.prompt_tokens
        record.output_tokens = chunk.usage.completion_tokens
    if any(choice.tells_token for choice in chunk.choices):
        record.token_times_s.append(now_s)
    return any(choice.finish_reason is not None for choice in chunk.choices)


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """As the header has it in seconds; None without one."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def error_message(body: bytes) -> str:
    """The message of OpenAI's error shape, or of vLLM's flat one, else the body's beginning in one line: of a page its
    text."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        answer = None
    if isinstance(answer, dict):
        inner = answer.get("error", answer)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return str(inner["message"])[:MAX_ERROR_CHARS]
    text = body.decode("utf-8", "replace")
    text = TAG.sub(" ", text) if text.lstrip().startswith("<") else text
    return " ".join(text.split())[:MAX_ERROR_CHARS]
