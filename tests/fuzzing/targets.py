"""Where our Python reads bytes of strangers: each target takes any bytes, and raises only for a defect.

``TARGETS`` are run by ``python -m tests.fuzzing`` with coverage, and by the test suite with ``seeds`` and whatever
Hypothesis makes."""

from __future__ import annotations

import asyncio
import json
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from fastapi import Request

from loadgen.errors import TraceError
from loadgen.workload.traces import read_trace
from services.executor.gguf_file import GgufFile
from services.gateway.http.bodies import read_upload
from services.offline_queue.batches.input import BatchInput
from shared.errors import ConfigError, ModelError
from shared.openai.completions.requests import CHAT, TEXT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.responses.requests import parse_response
from shared.openai.served_model import ServedModel
from shared.openai.tokenization import detokenized, tokenized
from shared.protocol.codec import decode, decode_record, encode, encode_record
from shared.protocol.offline.batches import BatchRecord
from shared.settings.config_file import ConfigFile
from shared.text.tokenizer import Tokenizer
from tests.fuzzing.messages import Maker, message_types
from tests.fuzzing.model import write_model
from tests.fuzzing.raw_http import BODIES, FORM, FORMS

MODEL = ServedModel("m", 128)
RECORD = BatchRecord("batch", CHAT, "file", "24h", 0, 1, "validating")
LINE = {"custom_id": "a", "method": "POST", "url": CHAT}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
FULL = BODY | {"stop": ["a"], "logit_bias": {"5": 1}, "seed": 1, "n": 2, "logprobs": True, "top_logprobs": 2}
VLLM_BODIES: list[dict[str, Any]] = [
    {"model": "m", "prompt": "x", "structured_outputs": {"regex": "a+"}, "bad_words": ["a"], "min_tokens": 1},
    {"model": "m", "prompt": "x", "guided_choice": ["a", "b"], "truncate_prompt_tokens": -1, "allowed_token_ids": [1]},
    BODY | {"guided_grammar": 'start: "a"', "chat_template_kwargs": {"a": [1]}, "continue_final_message": True},
    {"model": "m", "tokens": [1, 2]},
]
FLAT_TOOL: dict[str, Any] = {"type": "function"} | TOOL["function"]
CALLED: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}]},
]
RESPONSE_BODIES: list[dict[str, Any]] = [
    {"model": "m", "input": "x"},
    {"model": "m", "input": CALLED, "tools": [FLAT_TOOL], "tool_choice": {"type": "function", "name": "f"}},
]
GGUF_MAGIC = b"GGUF\x03\x00\x00\x00"
ROW = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
CONFIGURED = b'[executor]\nthreads = 2\n[strategy]\npreset = "hygen"\n'


def codec(data: bytes) -> None:
    """Messages of the bus; the first byte says of which type. What parses can be sent on."""
    types = _types()
    message_type = types[data[0] % len(types)] if data else types[0]
    for read, write in ((decode, encode), (decode_record, encode_record)):
        try:
            message = read(data[1:], message_type)
        except msgspec.DecodeError:
            continue
        write(message)


def batch_line(data: bytes) -> None:
    """Lines of a batch's input file: each comes to one thing."""
    lines = list(enumerate(data.split(b"\n"), 1))
    parsed = BatchInput(RECORD, _tokenizer(), MODEL).parse(lines)
    assert len(parsed.requests) + len(parsed.failures) + len(parsed.errors) <= len(lines)
    assert all(json.loads(failure.error)["status_code"] < 500 for failure in parsed.failures)
    encode(parsed.requests)


def http_body(data: bytes) -> None:
    """What gateways are asked; the first byte says where."""
    readers: list[Callable[[bytes], Any]] = [
        lambda body: parse_completion(CHAT, body, _tokenizer(), MODEL),
        lambda body: parse_completion(TEXT, body, _tokenizer(), MODEL),
        lambda body: parse_response(body, _tokenizer(), MODEL),
        lambda body: tokenized(body, _tokenizer(), MODEL),
        lambda body: detokenized(body, _tokenizer(), MODEL),
    ]
    try:
        encode(readers[data[0] % len(readers) if data else 0](data[1:]))
    except RequestError as error:
        assert 400 <= error.status < 500
        json.dumps(error.message).encode()


def multipart(data: bytes) -> None:
    """Uploads, in two pieces."""
    asyncio.run(_upload(data))


def gguf(data: bytes) -> None:
    """What a GGUF file says of its tokenizer."""
    _reading(GgufFile.read, GGUF_MAGIC + data, ModelError)


def trace(data: bytes) -> None:
    """Arrival traces."""
    _reading(lambda path: list(read_trace(path)), data, TraceError)


def configuration(data: bytes) -> None:
    """slackwater.toml."""
    _reading(ConfigFile.read, data, ConfigError)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (codec, batch_line, http_body, multipart, gguf, trace, configuration)
}


def seeds(name: str) -> list[bytes]:
    """Good inputs of a target, and some that are nearly good."""
    lines = [json.dumps(LINE | {"body": body}).encode() for body in (BODY, FULL, BODY | {"tools": [TOOL]})]
    bodies = [
        json.dumps(body).encode()
        for body in (BODY, FULL, *VLLM_BODIES, *RESPONSE_BODIES, {"model": "m", "prompt": "x"})
    ]
    found: dict[str, Callable[[], list[bytes]]] = {
        "codec": lambda: [
            bytes([number]) + encode(Maker(Random(number), {}, 0.0).value(each))
            for number, each in enumerate(message_types())
        ],
        "batch_line": lambda: [*lines, b"\n".join(lines), b"\xef\xbb\xbf" + lines[0] + b"\r\n"],
        "http_body": lambda: [bytes([number]) + body for number in range(5) for body in (*bodies, *BODIES.values())],
        "multipart": lambda: [each.partition(b"\r\n\r\n")[2] for each in FORMS.values()],
        "gguf": lambda: [(2).to_bytes(8, "little") * 2, b"", bytes(64), b"\xff" * 64],
        "trace": lambda: [ROW, ROW * 2, b'{"timestamp": 1, "input_length": 2, "output_length": 3}\n'],
        "configuration": lambda: [CONFIGURED, tomllib.__name__.encode()],
    }
    return found[name]()


@cache
def _types() -> list[type[msgspec.Struct]]:
    return message_types()


@cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.from_folder(write_model(Path(folder)))


@cache
def _scratch() -> Path:
    return Path(tempfile.mkstemp()[1])


def _reading(read: Callable[[Path], Any], data: bytes, refusal: type[Exception]) -> None:
    """A file of these bytes, where an error of this type is an answer."""
    _scratch().write_bytes(data)
    try:
        read(_scratch())
    except refusal as error:
        assert str(error)


async def _upload(data: bytes) -> None:
    half = len(data) // 2
    pieces = [
        {"type": "http.request", "body": data[:half], "more_body": True},
        {"type": "http.request", "body": data[half:], "more_body": False},
    ]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0)

    content_type = FORM.partition(": ")[2].encode()
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type)]}
    try:
        async with read_upload(Request(scope, receive), 5.0) as upload:
            upload.contents.read()
    except RequestError as error:
        assert 400 <= error.status < 500
