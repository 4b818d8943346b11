"""The server that a command of the CLI talks to: any that is OpenAI-compatible."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import httpx

from services.local.commands.parameters import DataDirOption, UrlOption
from services.local.stack.data_dir import DataDir
from services.local.stack.options import DEFAULT_DATA_DIR, StackOptions
from shared.client_key import client_key
from shared.errors import ApiError, ConfigError, StackError, UnavailableApiError
from shared.server_url import root_url

Json = dict[str, Any]

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0  # of what takes a server no time: none of it is a file, or a model's answer
UNAUTHORIZED = 401
KEY_HINT = "; a command sends that of SLACKWATER_API_KEY, else of OPENAI_API_KEY"
FULL = 429
MAY_DO_LATER = (408, FULL, 502, 503, 504)
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which server a command talks to."""

    url: UrlOption = None
    data_dir: DataDirOption = DEFAULT_DATA_DIR

    def client(self) -> ApiClient:
        return ApiClient(server_url(self.url, self.data_dir))


def server_url(url: str | None, data_dir: Path) -> str:
    """The given URL, else that of the stack in the data directory, else the default address. Raises ConfigError where
    the given one is none of a server."""
    if url is not None:
        _require_url(root_url(url), url)
        return root_url(url)
    try:
        return DataDir(data_dir).read_stack().http_url
    except StackError:
        return StackOptions().url


def _require_url(url: str, written: str) -> None:
    try:
        is_url = bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        is_url = False
    if not is_url:
        raise ConfigError(f"{written!r} is no URL of a server; write http://HOST:PORT")


class ApiClient:
    """One server. Every method raises ApiError, with the server's own words where it gave some; an UnavailableApiError
    where it may be asked again. An API key is read from SLACKWATER_API_KEY, else from OPENAI_API_KEY."""

    def __init__(self, url: str) -> None:
        self.url = root_url(url)
        local = httpx.URL(self.url).host in LOCAL_HOSTS  # a proxy cannot reach those
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        key = client_key(os.environ)
        self._client = httpx.Client(
            base_url=self.url,
            timeout=timeout,
            trust_env=not local,
            verify=httpx.create_ssl_context(),  # with SSL_CERT_FILE and SSL_CERT_DIR of the environment
            headers={"Authorization": f"Bearer {key}"} if key else {},
            event_hooks={"response": [_require_success]},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, needs: Sequence[str] = (), **params: str | int | None) -> Json:
        """A JSON object, which has the fields that are needed."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._answer("GET", path, needs, params=given)

    def post(
        self,
        path: str,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        needs: Sequence[str] = (),
    ) -> Json:
        """Send and receive a JSON object, as ``get``."""
        return self._answer("POST", path, needs, json=body, headers=headers)

    def delete(self, path: str, **params: str | int) -> Json:
        """Receive a JSON object."""
        return self._answer("DELETE", path, params=params)

    def pages(self, path: str, limit: int) -> Iterator[Json]:
        """The objects of a list, asked for ``limit`` at a time."""
        after: str | None = None
        while True:
            page = self.get(path, needs=("data",), limit=limit, after=after)
            yield from page["data"]
            if not page.get("has_more"):
                return
            after = page["data"][-1]["id"]

    def upload(self, file: Path, purpose: str) -> Json:
        """Store a file on the server; its FileObject."""
        with file.open("rb") as source:
            return self.upload_from(source, file.name, purpose)

    def upload_from(self, source: BinaryIO, name: str, purpose: str) -> Json:
        """Of an open file, from where it is, under the name."""
        sent_name = os.fsencode(name).decode(errors="replace")  # the system's names may be no text
        return self._json("POST", "/v1/files", ("id",), data={"purpose": purpose}, files={"file": (sent_name, source)})

    def download(self, file_id: str, to: Path, replace: bool = False) -> None:
        """Write a stored file's bytes; ``to`` has all of them or is left as it was. Raises OSError where it cannot be
        written, or is there and not to be replaced."""
        with whole_file(to, replace) as sink:
            self.download_to(file_id, sink)

    def download_to(self, file_id: str, sink: BinaryIO) -> None:
        """Write a stored file's bytes as they come. Raises OSError where it cannot be written."""
        with self._named_errors(), self._client.stream("GET", f"/v1/files/{file_id}/content") as response:
            for chunk in response.iter_bytes():
                sink.write(chunk)

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """The events of a streamed answer, without the closing ``[DONE]``. Closing the iterator aborts the request."""
        with self._named_errors(), self._client.stream("POST", path, json={**body, "stream": True}) as response:
            for line in _lines(response.iter_bytes()):
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data and data != b"[DONE]":
                    event: Json = json.loads(data.decode(errors="replace"))
                    _require_no_error(event)
                    yield event

    def _answer(self, method: str, path: str, needs: Sequence[str] = (), **request: Any) -> Json:
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        return self._json(method, path, needs, timeout=timeout, **request)

    def _json(self, method: str, path: str, needs: Sequence[str] = (), **request: Any) -> Json:
        with self._named_errors():
            answer = self._client.request(method, path, **request).json()
        is_object = isinstance(answer, dict)
        lacking = [name for name in needs if answer.get(name) is None] if is_object else []
        if lacking or not is_object:
            what = f"without {lacking[0]}" if is_object else "that is no object"
            said = f"{self.url} answered {method} {path} with JSON {what}"
            raise ApiError(f"{said}; is it an OpenAI-compatible server?")
        return cast(Json, answer)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            if isinstance(cause := _tls_error(error), ssl.SSLCertVerificationError):
                hint = "SSL_CERT_FILE can name a PEM file of who signed it"
                raise ApiError(
                    f"the certificate of {self.url} is not trusted: {cause.verify_message}; {hint}"
                ) from error
            if cause is not None:
                raise UnavailableApiError(f"{self.url}: {error}") from error
            hint = "start a stack with slackwater up, or give --url"
            raise UnavailableApiError(f"nothing answers at {self.url}; {hint}") from error
        except httpx.TransportError as error:
            raise UnavailableApiError(f"{self.url}: {error or type(error).__name__}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ApiError(f"{self.url}: {error or type(error).__name__}") from error
        except json.JSONDecodeError as error:
            raise ApiError(f"{self.url} does not speak JSON; is it an OpenAI-compatible server?") from error


@contextlib.contextmanager
def whole_file(path: Path, replace: bool) -> Iterator[BinaryIO]:
    """A file that has its name once all of it is written; what is no regular file is written as it comes. Raises
    OSError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as sink:
            yield sink
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as sink:
            yield sink
        if target.exists() and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Of a stream of events. To httpx U+2028 ends a line too, and others that a model's answer may have in it."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    yield rest


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Why a connection could not be encrypted, where that is why there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _require_success(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    status, said = response.status_code, ""
    with contextlib.suppress(json.JSONDecodeError):
        body = response.json()
        said = _error_in(body) if isinstance(body, dict) else ""
    elsewhere = f", and leads to {response.headers['Location']}" if response.has_redirect_location else ""
    said = said or f"{response.request.method} {response.request.url} answered {status}{elsewhere}"
    said += KEY_HINT if status == UNAUTHORIZED else ""
    is_for_good = response.headers.get("x-should-retry") == "false"  # as where a key's budget is used up
    may_do_later = status in MAY_DO_LATER and not is_for_good
    raise UnavailableApiError(said, is_full=status == FULL) if may_do_later else ApiError(said)


def _require_no_error(event: Json) -> None:
    if said := _error_in(event):
        raise ApiError(said)


def _error_in(answer: Json) -> str:
    """Empty where there is none."""
    error = answer.get("error")
    if not error:
        return ""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
