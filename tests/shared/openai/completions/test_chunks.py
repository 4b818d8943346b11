"""Chunks of a stream as clients read them: those of several choices, of an echoed prompt, and of calls of tools."""

import json
from typing import Any

import pytest

from shared.openai.completions.answers import AnswerHead, Choice, CompletionUsage, completion_body
from shared.openai.completions.chunks import ChunkWriter, EchoChunks, ToolCallChunks
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.shown_prompt import Echo, ShownPrompt
from shared.openai.shown_text import LogprobsShape, ShownToken
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import MessageToolCall
from shared.protocol.prompt_scores import PromptScore, pack_scores
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import TokenLogprobs
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS
from tests.shared.text.test_tokenizer import BYTE_LEVEL

USAGE = CompletionUsage.of(5, 3, 4)
A, B = BYTE_LEVEL.encode("a b")
TOKENS = [ShownToken(A, TokenLogprobs(-1.0, [B], [-0.5]), 0), ShownToken(B, TokenLogprobs(-2.0, [], []), 1)]
SHAPES = {endpoint: LogprobsShape(BYTE_LEVEL, is_chat=endpoint == CHAT) for endpoint in ENDPOINTS}
DONE = "[DONE]"


def head(endpoint: str) -> AnswerHead:
    return AnswerHead(endpoint, "r1", 17, "m", "default")


def events(data: bytes) -> list[dict[str, Any]]:
    """Of server-sent ones, each with a line of data."""
    assert not data or data.endswith(b"\n\n")
    lines = data.decode().split("\n\n")[:-1]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [{DONE: True} if line == f"data: {DONE}" else json.loads(line[len("data: ") :]) for line in lines]


def choices(data: bytes) -> list[dict[str, Any]]:
    return [choice for event in events(data) for choice in event["choices"]]


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_chunk_has_its_head_and_one_choice(endpoint: str, include_usage: bool) -> None:
    """With logprobs where there are tokens for them, and only there."""
    is_chat = endpoint == CHAT
    writer = ChunkWriter(head(endpoint), include_usage, SHAPES[endpoint], num_choices=2)
    told = {"id": "chatcmpl-r1" if is_chat else "cmpl-r1", "created": 17, "model": "m", "service_tier": "default"}
    told |= {"object": "chat.completion.chunk" if is_chat else "text_completion"}
    told |= {"usage": None} if include_usage else {}

    def content(text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if is_chat else {"text": text}

    plain = {"index": 1, "logprobs": None, "finish_reason": None} | content('a "b"\n')
    assert events(writer.text('a "b"\n', index=1)) == [told | {"choices": [plain]}]
    with_tokens = plain | {"index": 0, "logprobs": SHAPES[endpoint].body(TOKENS)} | content("a b")
    assert events(writer.text("a b", TOKENS)) == [told | {"choices": [with_tokens]}]
    last = {"index": 1, "logprobs": None, "finish_reason": "length"} | ({"delta": {}} if is_chat else {"text": ""})
    assert events(writer.finish("length", 1)) == [told | {"choices": [last]}]
    without = ChunkWriter(head(endpoint), include_usage)
    assert choices(without.text("a b", TOKENS)) == [plain | {"index": 0} | content("a b")]


def test_a_chat_begins_with_a_role_and_may_think() -> None:
    writer = ChunkWriter(head(CHAT), False, SHAPES[CHAT], num_choices=2)
    first = {"delta": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None, "finish_reason": None}
    assert choices(writer.start()) == [first | {"index": 0}, first | {"index": 1}]
    thought = {"index": 1, "logprobs": SHAPES[CHAT].body(TOKENS), "finish_reason": None, "delta": {"reasoning": "Hm"}}
    assert choices(writer.reasoning("Hm", TOKENS, 1)) == [thought]
    assert choices(writer.reasoning("Hm")) == [thought | {"index": 0, "logprobs": None}]
    assert choices(ChunkWriter(head(CHAT), False).reasoning("Hm", TOKENS)) == [thought | {"index": 0, "logprobs": None}]
    assert ChunkWriter(head(TEXT), False).start() == b""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_end_has_the_usage_where_it_was_asked_for(endpoint: str) -> None:
    usage, done = events(ChunkWriter(head(endpoint), True).end(USAGE))
    assert (usage["choices"], usage["id"][-3:], done) == ([], "-r1", {DONE: True})
    counts = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert usage["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 4}}
    assert events(ChunkWriter(head(endpoint), False).end(USAGE)) == [{DONE: True}]
    (failure,) = events(ChunkWriter(head(endpoint), True).fail("gone"))
    assert failure == {"error": {"message": "gone", "type": "server_error", "param": None, "code": None}}


@pytest.mark.parametrize("num_top", [None, 1])
def test_a_prompt_is_echoed_once_before_each_choice(num_top: int | None) -> None:
    """Offsets of what follows count from the prompt's beginning. Its scores are asked for when they are needed."""
    prompts = [[A, B], [B, A, B]]
    scores = [[PromptScore(-0.5, 1, (A,), (-0.25,))] * (len(prompt) - 1) for prompt in prompts]
    shown = [ShownPrompt(prompt, pack_scores(each)) for prompt, each in zip(prompts, scores, strict=True)]
    echoes = [Echo.of(BYTE_LEVEL, prompt) for prompt in prompts]
    sampling = SamplingParams(8, prompt_logprobs=num_top, logprobs=num_top, echo=True)
    asked: list[int] = []

    def prompt_of(index: int) -> ShownPrompt:
        asked.append(index)
        return shown[index]

    shape = SHAPES[TEXT] if num_top is not None else None
    writer = EchoChunks(head(TEXT), False, shape, num_choices=2, echoes=echoes, prompt_of=prompt_of, sampling=sampling)
    found = choices(writer.text("a b", TOKENS, 1) + writer.text("a", TOKENS[:1], 1))
    logprobs = [shown[index].logprobs(echoes[index], sampling) if num_top else None for index in range(2)]
    after = [echo.before(SHAPES[TEXT]) if num_top else None for echo in echoes]
    plain = {"finish_reason": None, "index": 1}
    assert found == [
        plain | {"text": echoes[1].text, "logprobs": logprobs[1]},
        plain | {"text": "a b", "logprobs": after[1].body(TOKENS) if after[1] else None},
        plain | {"text": "a", "logprobs": after[1].body(TOKENS[:1]) if after[1] else None},
    ]
    assert asked == ([1] if num_top else [])
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    first = {"index": 0, "text": echoes[0].text, "logprobs": logprobs[0], "finish_reason": None}
    assert choices(writer.finish("stop", 0)) == [first, end], "also of one that has no text"
    assert choices(writer.finish("stop", 1)) == [end | {"index": 1}]
    assert asked == ([1, 0] if num_top else [])


HERMES, MISTRAL = ToolFormat.HERMES, ToolFormat.MISTRAL
WEATHER, TIME = CALLS[HERMES]
NO_TOKENS: dict[str, Any] = {"content": []}
NAMES = ["get_weather", "get_time"]
BOTH = {
    HERMES: f"Well. {WEATHER} {TIME}",
    MISTRAL: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "get_time", "arguments": {}}]',
}


def called(format: ToolFormat, text: str) -> list[dict[str, Any]]:
    """The calls of the whole answer, by choice."""
    tools = ToolUse(format, NAMES)
    body = completion_body(head(CHAT), [Choice("", FinishReason.STOP), Choice(text, FinishReason.STOP)], USAGE, tools)
    found: Any = body
    calls: list[MessageToolCall] = found.choices[1].message.tool_calls
    return [
        {
            "id": each.id,
            "type": "function",
            "function": {"name": each.function.name, "arguments": each.function.arguments},
        }
        for each in calls
    ]


@pytest.mark.parametrize("format", BOTH)
def test_a_call_comes_whole_and_numbered_as_in_the_whole_answer(format: ToolFormat) -> None:
    """With its choice's tokens that are in no chunk yet; choices are counted apart."""
    text = BOTH[format]
    calls = called(format, text)
    assert [each["function"]["name"] for each in calls] == NAMES and len({each["id"] for each in calls}) == 2
    writer = ToolCallChunks(head(CHAT), False, SHAPES[CHAT], num_choices=2, tools=ToolUse(format, NAMES))
    data = writer.text("Hello", TOKENS[:1], 0)
    for place, letter in enumerate(text):
        data += writer.text(letter, TOKENS[1:] if place == len(text) - 1 else (), 1)
    data += writer.finish("stop", 1) + writer.finish("stop", 0)
    found = choices(data)
    assert found[0]["delta"] == {"content": "Hello"} and found[0]["logprobs"] == SHAPES[CHAT].body(TOKENS[:1])
    of_second = [each for each in found if each["index"] == 1]
    numbered = [{"index": number} | each for number, each in enumerate(calls)]
    assert [call for each in of_second for call in each["delta"].get("tool_calls", ())] == numbered
    with_calls = [each for each in of_second if "tool_calls" in each["delta"]]
    assert [len(each["delta"]["tool_calls"]) for each in with_calls] == [1, 1]
    with_tokens = [None, SHAPES[CHAT].body(TOKENS[1:])]  # Mistral's are known together, with the last token
    assert [each["logprobs"] for each in with_calls] == (with_tokens if format is HERMES else with_tokens[::-1])
    text = "".join(each["delta"].get("content", "") for each in of_second)
    assert text == ("Well." if format is HERMES else "")
    assert [(each["index"], each["finish_reason"]) for each in found if each["finish_reason"]] == [
        (1, "tool_calls"),
        (0, "stop"),
    ]


def test_while_a_call_may_come_chunks_have_tokens_and_no_text() -> None:
    def told(data: bytes) -> list[tuple[str | None, list[str]]]:
        return [
            (each["delta"].get("content"), [entry["token"] for entry in (each["logprobs"] or NO_TOKENS)["content"]])
            for each in choices(data)
        ]

    writer = ToolCallChunks(head(CHAT), False, SHAPES[CHAT], num_choices=2, tools=ToolUse(HERMES, NAMES))
    assert told(writer.text("<tool", TOKENS[:1], 1)) == [("", ["a"])], "it may be a call"
    assert told(writer.text("b", TOKENS[1:], 0)) == [("b", [" b"])]
    assert told(writer.text("> is none", TOKENS[1:], 1)) == [("<tool> is none", [" b"])]
    assert told(writer.text("<tool", (), 1)) == [("", [])]
    assert told(writer.finish("length", 1)) == [("<tool", []), (None, [])]
    assert told(writer.text(" ", TOKENS[:1], 0)) == [("", ["a"])], "which may stand before a call"
    assert told(writer.finish("stop", 0)) == [(" ", []), (None, [])]
    other = ToolCallChunks(head(CHAT), False, SHAPES[CHAT], tools=ToolUse(HERMES, NAMES))
    assert told(other.text(f"{WEATHER}", TOKENS[:1])) == [(None, ["a"])]
    assert told(other.text("\n", TOKENS[1:])) == [("", [" b"])]
    assert [each["finish_reason"] for each in choices(other.finish("stop"))] == ["tool_calls"]


def test_an_answer_that_is_cut_says_so_whether_it_calls_or_not() -> None:
    writer = ToolCallChunks(head(CHAT), False, tools=ToolUse(HERMES, NAMES))
    assert choices(writer.text(TIME))
    assert choices(writer.finish("length"))[-1]["finish_reason"] == "length"
