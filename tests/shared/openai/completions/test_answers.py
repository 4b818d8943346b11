"""Answers that the official client's own types accept."""

import json
from typing import Any

import msgspec
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.answers import AnswerHead, Choice, CompletionUsage, completion_body
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.objects import created_s_of, error_body, is_well_formed, new_id
from shared.openai.shown_text import shown_output
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput
from shared.text.tokenizer import Tokenizer
from tests.shared.text.test_tokenizer import BYTE_FALLBACK

USAGE = CompletionUsage.of(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
TEXT_WITH_ESCAPES = 'quote " newline \n emoji 😀 \u2028'


def event_data(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n")
    data: dict[str, Any] = json.loads(event[len(b"data: ") :])
    return data


@pytest.mark.parametrize(("endpoint", "shape"), [(CHAT, ChatCompletion), (TEXT, Completion)])
def test_a_whole_answer_fits_the_clients_types(endpoint: str, shape: Any) -> None:
    choices = [Choice(TEXT_WITH_ESCAPES, FinishReason.LENGTH), Choice("other", FinishReason.STOP)]
    body = msgspec.to_builtins(completion_body(AnswerHead(endpoint, "r1", 17, "m"), choices, USAGE))
    parsed = shape.model_validate(body, strict=True)
    assert [(each.index, each.finish_reason) for each in parsed.choices] == [(0, "length"), (1, "stop")]
    choice = parsed.choices[0]
    assert (choice.message.content if endpoint == CHAT else choice.text) == TEXT_WITH_ESCAPES
    assert choice.finish_reason == "length"
    assert parsed.usage.total_tokens == 8
    assert parsed.usage.prompt_tokens_details.cached_tokens == 4


@pytest.mark.parametrize("include_usage", [False, True])
def test_chat_chunks_fit_the_clients_types_and_join_to_the_text(include_usage: bool) -> None:
    writer = ChunkWriter(AnswerHead(CHAT, "r1", 17, "m"), include_usage)
    events = [writer.start(), writer.text("one "), writer.text(TEXT_WITH_ESCAPES), writer.finish(FinishReason.STOP)]
    chunks = [ChatCompletionChunk.model_validate(event_data(event), strict=True) for event in events]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one " + TEXT_WITH_ESCAPES
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-r1"}
    assert all(("usage" in event_data(event)) == include_usage for event in events)


def test_chunks_of_several_choices_name_theirs() -> None:
    writer = ChunkWriter(AnswerHead(CHAT, "r1", 17, "m"), False, num_choices=2)
    starts = [event + b"\n\n" for event in writer.start().split(b"\n\n")[:-1]]
    events = [*starts, writer.text("a", index=1), writer.text("b"), writer.finish(FinishReason.STOP, 1)]
    chunks = [ChatCompletionChunk.model_validate(event_data(event), strict=True) for event in events]
    assert [chunk.choices[0].index for chunk in chunks] == [0, 1, 1, 0, 1]
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant"] * 2


def test_text_chunks_fit_the_clients_types() -> None:
    writer = ChunkWriter(AnswerHead(TEXT, "r1", 17, "m"), False)
    assert writer.start() == b""
    events = [event_data(writer.text("a")), event_data(writer.finish(FinishReason.LENGTH))]
    assert [event["choices"][0]["text"] for event in events] == ["a", ""]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "length"]
    assert {(event["id"], event["object"]) for event in events} == {("cmpl-r1", "text_completion")}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_usage_chunk_has_no_choices(endpoint: str) -> None:
    usage, done, rest = ChunkWriter(AnswerHead(endpoint, "r1", 17, "m"), True).end(USAGE).split(b"\n\n")
    event = event_data(usage + b"\n\n")
    assert (event["choices"], done, rest) == ([], b"data: [DONE]", b"")
    assert ChunkWriter(AnswerHead(endpoint, "r1", 17, "m"), False).end(USAGE) == b"data: [DONE]\n\n"
    assert event["usage"]["total_tokens"] == 8


def test_errors_have_openais_shape() -> None:
    expected = {"error": {"message": "no", "type": "server_error", "param": None, "code": "c"}}
    assert error_body("no", "server_error", code="c") == expected
    failed = ChunkWriter(AnswerHead(CHAT, "r1", 17, "m"), False).fail("no")
    assert event_data(failed) == error_body("no", "server_error")


def test_the_stop_token_and_what_follows_a_stop_string_are_not_shown() -> None:
    tokenizer = Tokenizer.from_folder(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None))
    token_ids = tokenizer.encode("one two three")
    by_token = SamplingParams(max_tokens=9, stop_token_ids=(token_ids[-1],))
    stopped, cut = (ChoiceOutput(token_ids, reason) for reason in (FinishReason.STOP, FinishReason.LENGTH))
    assert shown_output(tokenizer, stopped, by_token) == ("one two", None)
    assert shown_output(tokenizer, cut, by_token) == ("one two three", None)
    by_string = SamplingParams(max_tokens=9, stop=(" two",))
    assert shown_output(tokenizer, stopped, by_string) == ("one", None)
    assert shown_output(tokenizer, cut, SamplingParams(max_tokens=3)) == ("one two three", None)


def test_an_output_keeps_the_blank_between_the_prompt_and_itself() -> None:
    token_ids = BYTE_FALLBACK.encode("hello")
    output, sampling = ChoiceOutput(token_ids, FinishReason.LENGTH), SamplingParams(9)
    assert shown_output(BYTE_FALLBACK, output, sampling) == ("hello", None)
    assert shown_output(BYTE_FALLBACK, output, sampling.after(BYTE_FALLBACK.encode("a"))) == (" hello", None)


def test_what_ends_an_output_and_special_tokens_are_shown_where_that_is_asked_for() -> None:
    tokenizer = Tokenizer.from_folder(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None))
    token_ids, (end,) = tokenizer.encode("one two three"), tokenizer.encode("<|im_end|>")
    by_string = SamplingParams(9, stop=(" two",), includes_stop=True)
    stopped, ended = (ChoiceOutput(ids, FinishReason.STOP) for ids in (token_ids, [*token_ids, end]))
    assert shown_output(tokenizer, stopped, by_string) == ("one two", None)
    by_token = SamplingParams(9, stop_token_ids=(token_ids[-1],), includes_stop=True)
    assert shown_output(tokenizer, stopped, by_token) == ("one two three", None)
    special = SamplingParams(9, shows_special=True)
    assert shown_output(tokenizer, ended, special) == ("one two three", None)
    with_end = SamplingParams(9, shows_special=True, includes_stop=True)
    assert shown_output(tokenizer, ended, with_end) == ("one two three<|im_end|>", None)
    within = ChoiceOutput([end, *token_ids], FinishReason.LENGTH)
    assert shown_output(tokenizer, within, special) == ("<|im_end|>one two three", None)


def test_ids_sort_by_time_and_can_be_keys() -> None:
    ids = [new_id("batch_", second + 0.001) for second in range(20)]
    assert ids == sorted(ids) and len(set(ids)) == 20
    assert all(is_well_formed(id) for id in ids)
    assert [created_s_of(id) for id in ids] == list(range(20))
    assert [created_s_of(id.replace("batch_", "file-") + "-output") for id in ids] == list(range(20))
    assert [created_s_of(id.replace("batch_", "file-") + "-error") for id in ids] == list(range(20))
    assert created_s_of("file-unknown-output") is None and created_s_of(ids[0] + "-input") is None
    assert not any(is_well_formed(id) for id in ("", "a.b", "a b", "é", "*", ">", "a" * 65, "../x"))
