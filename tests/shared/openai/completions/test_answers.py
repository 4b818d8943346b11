"""Answers that the official client's own types accept."""

import json
from pathlib import Path
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
from shared.openai.reasoning import Reasoning
from shared.openai.shown_prompt import Echo, ShownPrompt, joined
from shared.openai.shown_text import LogprobsShape, shown_output
from shared.openai.tools.calls import ToolUse
from shared.protocol.prompt_scores import PromptScore, pack_scores
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS, make_model
from tests.shared.text.test_tokenizer import BYTE_FALLBACK, BYTE_LEVEL

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


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_head_tells_the_tier_where_there_is_one(endpoint: str) -> None:
    told = {"id": "chatcmpl-r1" if endpoint == CHAT else "cmpl-r1", "created": 17, "model": "m"}
    assert AnswerHead(endpoint, "r1", 17, "m").fields() == told
    assert AnswerHead(endpoint, "r1", 17, "m", "flex").fields() == told | {"service_tier": "flex"}
    body = msgspec.to_builtins(completion_body(AnswerHead(endpoint, "r1", 17, "m", "flex"), [], USAGE))
    assert body["service_tier"] == "flex" and body["usage"] == msgspec.to_builtins(USAGE)


def test_the_usage_adds_up() -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    told = [msgspec.to_builtins(CompletionUsage.of(5, 3, *cached)) for cached in ((), (4,))]
    assert told == [counts | {"prompt_tokens_details": {"cached_tokens": cached}} for cached in (0, 4)]


PROMPT, OUTPUT = BYTE_LEVEL.encode("a b"), BYTE_LEVEL.encode(" c d")
PROMPT_SCORES = pack_scores([PromptScore(-0.5, 2, (PROMPT[0],), (-0.25,))])
SCORED = [TokenLogprobs(-1.0, [PROMPT[0]], [-0.75]), TokenLogprobs(-2.0, [PROMPT[1]], [-1.5])]


@pytest.mark.parametrize("num_top", [None, 1])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("lists_prompt", [False, True])
def test_a_choice_is_shown_as_it_was_asked_for(num_top: int | None, echo: bool, lists_prompt: bool) -> None:
    """Its text behind the prompt's, its tokens' logprobs behind those of the prompt, and the prompt's listed apart."""
    output = ChoiceOutput(OUTPUT, FinishReason.LENGTH, SCORED if num_top else None)
    wanted = 1 if lists_prompt or (echo and num_top) else None
    sampling = SamplingParams(8, logprobs=num_top, prompt_logprobs=wanted, echo=echo, lists_prompt=lists_prompt)
    prompt, shape = ShownPrompt(PROMPT, PROMPT_SCORES), LogprobsShape(BYTE_LEVEL, is_chat=False)
    found = Choice.of(output, sampling, shape, False, prompt)
    assert (found.text, found.finish_reason) == ("a b c d" if echo else " c d", FinishReason.LENGTH)
    assert found.prompt_logprobs == prompt.listed(BYTE_LEVEL, sampling) and bool(found.prompt_logprobs) is lists_prompt
    own = Echo.of(BYTE_LEVEL, PROMPT)
    _, tokens = shown_output(BYTE_LEVEL, output, sampling)
    if num_top is None:
        assert found.logprobs is None
    elif not echo:
        assert found.logprobs == shape.body(tokens)
    else:
        assert found.logprobs == joined(prompt.logprobs(own, sampling), own.before(shape).body(tokens))
        assert found.logprobs is not None and found.logprobs["text_offset"] == [0, 1, 3, 5]


def test_the_mark_of_a_call_is_shown_where_calls_are_looked_for(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_model(model_folder, ToolFormat.MISTRAL, tmp_path_factory.mktemp("model"))
    tokenizer, (call, _) = Tokenizer.from_folder(folder), CALLS[ToolFormat.MISTRAL]
    output = ChoiceOutput(tokenizer.encode(call), FinishReason.STOP)
    shape, prompt = LogprobsShape(tokenizer, is_chat=True), ShownPrompt([1])
    texts = [Choice.of(output, SamplingParams(9), shape, shows_calls, prompt).text for shows_calls in (True, False)]
    assert texts == [call, call.removeprefix("[TOOL_CALLS]")]


LISTED: list[dict[str, Any] | None] = [None, {"5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}]


def test_the_prompt_is_listed_with_each_text_and_once_with_a_chat() -> None:
    choices = [Choice("a", FinishReason.STOP, {"tokens": ["a"]}, LISTED), Choice("b", FinishReason.STOP)]
    text, chat = (
        msgspec.to_builtins(completion_body(AnswerHead(each, "r1", 17, "m"), choices, USAGE)) for each in (TEXT, CHAT)
    )
    assert [each.get("prompt_logprobs") for each in text["choices"]] == [LISTED, None]
    assert "prompt_logprobs" not in text and "prompt_logprobs" not in text["choices"][1]
    assert chat["prompt_logprobs"] == LISTED and not any("prompt_logprobs" in each for each in chat["choices"])
    for body in (text, chat):
        assert [each["logprobs"] for each in body["choices"]] == [{"tokens": ["a"]}, None]
    bare = msgspec.to_builtins(completion_body(AnswerHead(CHAT, "r1", 17, "m"), choices[1:], USAGE))
    assert "prompt_logprobs" not in bare
    assert "prompt_logprobs" not in msgspec.to_builtins(completion_body(AnswerHead(CHAT, "r1", 17, "m"), [], USAGE))


CALL, _ = CALLS[ToolFormat.HERMES]
TOOLS, MARKS = ToolUse(ToolFormat.HERMES, ["get_weather"]), Reasoning("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "num_calls"),
    [
        ("", "", None, 0),
        ("Yes.", "Yes.", None, 0),
        ("<think>Hm.", None, "Hm.", 0),
        ("<think>Hm.</think>Yes.", "Yes.", "Hm.", 0),
        (CALL, None, None, 1),
        (f"Well. {CALL}", "Well.", None, 1),
        (f"<think>Hm.</think>{CALL}{CALL}", None, "Hm.", 2),
        (f"<think>Hm.</think>Well. {CALL}", "Well.", "Hm.", 1),
    ],
)
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_message_has_what_its_text_has(
    text: str, content: str | None, reasoning: str | None, num_calls: int, reason: FinishReason
) -> None:
    """No content beside calls or a thought alone; an answer that was cut says so, whether it calls or not."""
    whole = [Choice(text, reason)] * 2
    body = msgspec.to_builtins(completion_body(AnswerHead(CHAT, "r1", 17, "m"), whole, USAGE, TOOLS, MARKS))
    for index, choice in enumerate(body["choices"]):
        message, ended = choice["message"], reason is FinishReason.STOP and num_calls > 0
        assert (choice["index"], choice["finish_reason"]) == (index, "tool_calls" if ended else reason)
        assert (message["content"], message.get("reasoning"), message["role"]) == (content, reasoning, "assistant")
        assert [each["function"]["name"] for each in message.get("tool_calls", [])] == ["get_weather"] * num_calls
        assert message["refusal"] is None and ("reasoning" in message) is (reasoning is not None)
        assert ("tool_calls" in message) is (num_calls > 0)
    ids = [call["id"] for choice in body["choices"] for call in choice["message"].get("tool_calls", [])]
    assert len(set(ids)) == len(ids) == 2 * num_calls, "calls of all choices are told apart"
    plain = msgspec.to_builtins(completion_body(AnswerHead(CHAT, "r1", 17, "m"), whole, USAGE))
    assert plain["choices"][0]["message"] == {"content": text, "role": "assistant", "refusal": None}


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
