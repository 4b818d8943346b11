"""Which lines are requests, which fail alone, and which make the batch invalid."""

import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.offline_queue.batches.input import (
    MAX_CUSTOM_ID_LENGTH,
    MAX_ERRORS,
    MAX_LINES,
    USUAL_SAMPLING_BYTES,
    BatchInput,
    ParsedLines,
)
from shared.lines import MAX_LINE_BYTES, split_lines
from shared.openai.completions.requests import CHAT, TEXT
from shared.openai.errors import MAX_MESSAGE_LENGTH
from shared.protocol.codec import encode
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.sampling import FinishReason
from tests.services.offline_queue.batch_desk import MODEL, TOKENIZER, Desk, as_jsonl, chat_line

RECORD = BatchRecord("batch_1", CHAT, "file-1", "24h", 1000, 2000, "validating")
GOOD = json.dumps(chat_line("good")).encode()
MEGABYTE = b"x" * 1024**2
MISSING = "missing_required_parameter"


def parse(*lines: bytes) -> ParsedLines:
    return BatchInput(RECORD, TOKENIZER, MODEL).parse(list(enumerate(lines, start=1)))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in chat_line("a").items() if key != name}


def test_a_good_line() -> None:
    line = chat_line("ä", body={"seed": 7, "stop": ["x"], "temperature": 0})
    parsed = parse(json.dumps(line).encode() + b"\r")
    (request,) = parsed.requests
    prompt = TOKENIZER.apply_chat_template([{"role": "user", "content": "Say ä"}])
    assert (request.batch_id, request.line, request.custom_id, request.model) == ("batch_1", 1, "ä", MODEL.name)
    assert request.request.request_id == "batch_1.1"
    assert request.request.prompt_token_ids == prompt
    assert request.request.arrival_s == RECORD.created_at
    assert (request.request.sampling.seed, request.request.sampling.stop) == (7, ("x",))
    (kept,) = parsed.lines
    assert (kept.line, kept.custom_id, kept.num_prompt_tokens) == (1, "ä", len(prompt))
    assert kept.sampling == request.request.sampling
    assert parsed.errors == [] == parsed.failures


INVALID: list[tuple[bytes | dict[str, Any], str, str | None]] = [
    (b"hello", "invalid_json_line", None),
    (b'{"custom_id": "a"', "invalid_json_line", None),
    (b"[1, 2]", "invalid_json_line", None),
    (b'"text"', "invalid_json_line", None),
    (b"null", "invalid_json_line", None),
    (b"{}{}", "invalid_json_line", None),
    (b"\xff\xfe{}", "invalid_json_line", None),
    (b'{"custom_id": "\\ud800"}', "invalid_json_line", None),
    (b'{"custom_id": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json_line", None),
    (b"{}", MISSING, "custom_id"),
    (without("custom_id"), MISSING, "custom_id"),
    (without("method"), MISSING, "method"),
    (without("url"), MISSING, "url"),
    (without("body"), MISSING, "body"),
    (chat_line(""), MISSING, "custom_id"),
    (chat_line("a") | {"custom_id": None}, MISSING, "custom_id"),
    (chat_line("a") | {"body": None}, MISSING, "body"),
    (chat_line("a") | {"custom_id": 5}, "invalid_type", "custom_id"),
    (chat_line("a") | {"url": ["x"]}, "invalid_type", "url"),
    (chat_line("a") | {"body": "x"}, "invalid_type", "body"),
    (chat_line("a") | {"body": []}, "invalid_type", "body"),
    (chat_line("x" * (MAX_CUSTOM_ID_LENGTH + 1)), "invalid_custom_id", "custom_id"),
    (chat_line("a", method="GET"), "invalid_method", "method"),
    (chat_line("a", url=TEXT), "invalid_url", "url"),
    (chat_line("a", url="/v1/embeddings"), "invalid_url", "url"),
    (chat_line("a", body={"model": "gpt-4o"}), "model_not_found", "body.model"),
    (chat_line("a", body={"model": None}), MISSING, "body.model"),
    (chat_line("a", body={"stream": True}), "unsupported_value", "body.stream"),
    (b'{"custom_id": "' + b"x" * MAX_LINE_BYTES, "line_too_long", None),
]


@pytest.mark.parametrize(("line", "code", "param"), INVALID)
def test_a_line_that_makes_the_batch_invalid(line: bytes | dict[str, Any], code: str, param: str | None) -> None:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    parsed = parse(GOOD, data)
    assert [(error.code, error.line, error.param) for error in parsed.errors] == [(code, 2, param)]
    assert parsed.errors[0].message
    assert [request.line for request in parsed.requests] == [1]


FAILING: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": "hello"}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10_000}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"n": 9}, "n"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"temprature": 0}, "temprature"),
    ({"stop_token_ids": [5] * 1_000_000}, "stop_token_ids"),
]


@pytest.mark.parametrize(("body", "param"), FAILING)
def test_a_line_that_fails_alone(body: dict[str, Any], param: str | None) -> None:
    parsed = parse(json.dumps(chat_line("bad", body=body)).encode(), GOOD)
    (failure,) = parsed.failures
    assert (failure.request_id, failure.finish_reason) == ("batch_1.1", FinishReason.ERROR)
    error = json.loads(failure.error)
    assert error["status_code"] == 400
    assert error["body"]["error"]["param"] == param
    assert [(line.line, line.custom_id) for line in parsed.lines] == [(1, "bad"), (2, "good")]
    assert parsed.errors == []


def test_what_is_large_beside_a_prompt_is_counted() -> None:
    large = [
        {"stop_token_ids": list(range(20_000, 20_128))},
        {"stop": ["€" * 512] * 4},
        {"logit_bias": {str(token_id): 1.5 for token_id in range(1024)}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x" * 9000]}}}},
    ]
    parsed = parse(GOOD, *(json.dumps(chat_line(str(n), body=body)).encode() for n, body in enumerate(large)))
    sizes = [len(encode(request.request.sampling)) for request in parsed.requests]
    counted = [line.num_sampling_bytes + USUAL_SAMPLING_BYTES for line in parsed.lines]
    assert len(counted) == 5 and counted[1:] == sizes[1:] and counted[0] >= sizes[0]


def test_a_long_message_is_cut() -> None:
    role = "x" * 100_000
    (failure,) = parse(json.dumps(chat_line("a", body={"messages": [{"role": role, "content": ""}]})).encode()).failures
    assert len(json.loads(failure.error)["body"]["error"]["message"]) == MAX_MESSAGE_LENGTH
    (error,) = parse(json.dumps(chat_line("a", body={"model": "x" * 100_000})).encode()).errors
    assert len(error.message) == MAX_MESSAGE_LENGTH


def test_a_custom_id_is_used_once() -> None:
    reader = BatchInput(RECORD, TOKENIZER, MODEL)
    first = reader.parse([(1, GOOD), (2, json.dumps(chat_line("other")).encode())])
    second = reader.parse([(3, GOOD)])
    assert first.errors == []
    assert [(error.code, error.line) for error in second.errors] == [("duplicate_custom_id", 3)]
    assert "good" in second.errors[0].message


def test_empty_lines_and_a_byte_order_mark_are_passed_over() -> None:
    parsed = parse(b"\xef\xbb\xbf" + GOOD, b"", b"  \r", json.dumps(chat_line("b")).encode())
    assert [(request.line, request.custom_id) for request in parsed.requests] == [(1, "good"), (4, "b")]
    assert parsed.errors == []


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
        st.dictionaries(
            st.sampled_from(["model", "messages", "max_tokens", "stop", "seed", "temperature", "stream", "top_k"]),
            st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3),
        ).map(lambda body: json.dumps(chat_line("fuzz") | {"body": body}).encode()),
    )
)
def test_whatever_a_line_holds_it_comes_to_one_thing(data: bytes) -> None:
    parsed = parse(data.replace(b"\n", b""), GOOD)
    outcomes = len(parsed.requests) + len(parsed.failures) + len(parsed.errors)
    assert outcomes in (1, 2)
    assert all(json.loads(failure.error)["status_code"] < 500 for failure in parsed.failures)
    assert msgspec.msgpack.encode(parsed.requests)


async def split(data: bytes, size: int, max_bytes: int | None = None) -> list[tuple[int, bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    return [each async for each in split_lines(chunks(), max_bytes)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_lines_are_whole_however_the_file_is_cut(size: int) -> None:
    assert await split(b"one\n\ntwo\nthree", size) == [(1, b"one"), (2, b""), (3, b"two"), (4, b"three")]
    assert await split(b"", size) == []
    assert await split(b"\n", size) == [(1, b"")]
    assert await split(b"long line\nb", size, max_bytes=4) == [(1, b"long "), (2, b"b")]


async def test_a_line_of_100_mb_is_never_in_memory() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield MEGABYTE

    tracemalloc.start()
    try:
        (line,) = [each async for each in split_lines(endless(), MAX_LINE_BYTES)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (line[0], len(line[1])) == (1, MAX_LINE_BYTES + 1)
    assert peak < 4 * MAX_LINE_BYTES + 4 * len(MEGABYTE)


FILES: list[tuple[str, Callable[[], bytes], list[tuple[str, int | None]]]] = [
    ("empty", lambda: b"", [("empty_file", None)]),
    ("blank", lambda: b"\n \n\n", [("empty_file", None)]),
    ("not text", lambda: bytes(range(256)) * 2, [("invalid_json_line", line) for line in (1, 2, 3)]),
    (
        "several",
        lambda: as_jsonl([chat_line("a"), chat_line("a"), chat_line("b", method="PUT"), chat_line("c")]),
        [("duplicate_custom_id", 2), ("invalid_method", 3)],
    ),
    (
        "late",
        lambda: as_jsonl([chat_line(str(number)) for number in range(300)]) + b"{\n",
        [("invalid_json_line", 301)],
    ),
    ("many", lambda: b"x\n" * 1000, [("invalid_json_line", line) for line in range(1, MAX_ERRORS + 1)]),
]


@pytest.mark.parametrize(("content", "errors"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
async def test_a_file_that_fails(
    desk: Desk, content: Callable[[], bytes], errors: list[tuple[str, int | None]]
) -> None:
    batch_id = await desk.submit(content())
    async with desk.running() as (_, pool):
        record = await desk.until_status(batch_id, "failed")
        assert await desk.stored_requests(batch_id) == []
        assert pool.added == []
        await desk.until_cleared(batch_id)
    assert record.errors is not None
    assert [(error.code, error.line) for error in record.errors.data] == errors
    assert record.failed_at is not None
    assert (record.request_counts.total, record.output_file_id, record.in_progress_at) == (0, None, None)
    assert await desk.stored_results(batch_id) == []


async def test_a_file_of_too_many_lines(desk: Desk) -> None:
    batch_id = await desk.submit(b"\n" * MAX_LINES + GOOD + b"\n")
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert record.errors is not None
    assert [(error.code, error.line) for error in record.errors.data] == [("too_many_lines", MAX_LINES + 1)]


@pytest.mark.parametrize("rest", [as_jsonl([chat_line("late")]), b"\n"])
async def test_what_stands_behind_an_empty_line_too_many(desk: Desk, rest: bytes) -> None:
    """Nothing of the file is left out unsaid."""
    batch_id = await desk.submit(GOOD + b"\n" * (MAX_LINES + 1) + rest)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert record.errors is not None
    assert [(error.code, error.line) for error in record.errors.data] == [("too_many_lines", MAX_LINES + 2)]


async def test_an_empty_line_behind_the_last(desk: Desk) -> None:
    batch_id = await desk.submit(GOOD + b"\n" * (MAX_LINES + 1))
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.request_counts.total) == ("completed", 1)
