"""What a model thinks, parted from what it answers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.answers import AnswerHead, Choice, CompletionUsage, completion_body
from shared.openai.completions.chunks import ChunkWriter, ToolCallChunks
from shared.openai.completions.reasoning_chunks import ReasoningChunks
from shared.openai.completions.requests import CHAT, parse_completion
from shared.openai.reasoning import Reasoning, ReasoningParser, part
from shared.openai.served_model import ServedModel
from shared.openai.shown_text import LogprobsShape, ShownToken
from shared.openai.tools.calls import ToolUse
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import TokenLogprobs
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.thinking_model import make_thinking_model
from tests.services.gateway.tool_models import CALLS, WEATHER

MARKS = ("<think>", "</think>")
HEAD, USAGE = AnswerHead(CHAT, "r1", 17, "m"), CompletionUsage.of(3, 4)
PIECES = st.sampled_from(["<think>", "</think>", "a", "b ", " ", "\n", "<", "</", "th", "ink>"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None)
    return Tokenizer.from_folder(make_thinking_model(folder, tmp_path_factory.mktemp("model")))


def naive(text: str, reasoning: Reasoning) -> tuple[str, str]:
    if not reasoning.is_open:
        if not text.lstrip().startswith(reasoning.begin):
            return "", text
        text = text.lstrip().removeprefix(reasoning.begin)
    thought, _, content = text.partition(reasoning.end)
    return thought.strip(), content.lstrip()


@given(st.lists(PIECES, max_size=9), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans())
def test_a_text_is_parted_alike_however_it_is_cut(pieces: list[str], cuts: list[int], is_open: bool) -> None:
    text, reasoning = "".join(pieces), Reasoning(*MARKS, is_open)
    parser, parts, start, turn = ReasoningParser(reasoning), [], 0, 0
    while start < len(text):
        end = start + cuts[turn % len(cuts)]
        parts.append(parser.push(text[start:end]))
        start, turn = end, turn + 1
    parts.append(parser.push("", is_whole=True))
    thought, content = ("".join(column) for column in zip(*parts, strict=True))
    assert (thought, content) == naive(text, reasoning)
    assert part(text, reasoning) == (thought or None, content)


def test_blanks_are_kept_once_the_content_has_begun() -> None:
    parser = ReasoningParser(Reasoning(*MARKS, is_open=True))
    contents = [parser.push(piece).content for piece in ("x</think>", " \n", " a", "", " b\n", " ")]
    assert contents == ["", "", "a", "", " b\n", " "]


def deltas(events: bytes) -> list[dict[str, Any]]:
    lines = [line for line in events.decode().split("\n\n") if line]
    return [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]


def test_reasoning_is_streamed_before_the_content() -> None:
    chunks = ReasoningChunks(ChunkWriter(HEAD, False), Reasoning(*MARKS))
    events = [chunks.text(text) for text in ("<thi", "nk>\nLet", " me.", "\n</think>", "\n\nYes", ".")]
    shown = [deltas(event) for event in events]
    assert shown == [
        [{"content": ""}],
        [{"reasoning": "Let"}],
        [{"reasoning": " me."}],
        [{"content": ""}],
        [{"content": "Yes"}],
        [{"content": "."}],
    ]
    assert deltas(chunks.finish("stop")) == [{}]
    at_once = ReasoningChunks(ChunkWriter(HEAD, False), Reasoning(*MARKS))
    shown = [deltas(at_once.text(text)) for text in ("<think>", "Let", "</think>")]
    assert shown == [[{"reasoning": ""}], [{"reasoning": "Let"}], [{"content": ""}]]


def test_each_choice_is_parted_by_itself() -> None:
    chunks = ReasoningChunks(ChunkWriter(HEAD, True, num_choices=2), Reasoning(*MARKS))
    assert chunks.start() == ChunkWriter(HEAD, True, num_choices=2).start()
    events = b"".join(chunks.text(text, (), index) for index, text in ((1, "<think>a"), (0, "b"), (1, "c</think>d")))
    lines = [json.loads(line.removeprefix("data: ")) for line in events.decode().split("\n\n") if line]
    found = [(choice["index"], choice["delta"]) for line in lines for choice in line["choices"]]
    assert found == [(1, {"reasoning": "a"}), (0, {"content": "b"}), (1, {"reasoning": "c"}), (1, {"content": "d"})]
    for index in (1, 0):
        assert chunks.finish("length", index) == ChunkWriter(HEAD, True, num_choices=2).finish("length", index)
    assert chunks.end(USAGE) == ChunkWriter(HEAD, True).end(USAGE) and chunks.fail("x") == ChunkWriter(HEAD, True).fail(
        "x"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<thi", [{"content": "<thi"}, {}]),
        ("<think>Hm</thi", [{"reasoning": "</thi"}, {}]),
        ("<think>Hm</think>", [{}]),
        ("Yes", [{}]),
    ],
)
def test_the_rest_comes_at_the_end(text: str, shown: list[dict[str, Any]]) -> None:
    chunks = ReasoningChunks(ChunkWriter(HEAD, False), Reasoning(*MARKS))
    chunks.text(text)
    assert deltas(chunks.finish("stop")) == shown
    hidden = ReasoningChunks(ChunkWriter(HEAD, False), Reasoning(*MARKS, is_shown=False))
    hidden.text(text)
    without = [{"content": ""} if "reasoning" in each else each for each in shown]
    assert deltas(hidden.finish("stop")) == without


def test_tokens_come_with_what_is_shown_first(tokenizer: Tokenizer) -> None:
    """Once, where a piece has the end of the reasoning and the beginning of the content."""
    shape = LogprobsShape(tokenizer, is_chat=True)
    tokens = [ShownToken(10, TokenLogprobs(-1.0, [], []), 0)]
    for reasoning, expected in (
        (Reasoning(*MARKS, is_open=True), [({"reasoning": "Hm"}, True), ({"content": "Yes"}, False)]),
        (Reasoning(*MARKS, is_open=True, is_shown=False), [({"content": "Yes"}, True)]),
    ):
        chunks = ReasoningChunks(ChunkWriter(HEAD, False, shape), reasoning)
        data = chunks.text("Hm</think>Yes", tokens)
        lines = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]
        found = [(each["choices"][0]["delta"], each["choices"][0]["logprobs"] is not None) for each in lines]
        assert found == expected


def test_reasoning_that_is_not_wanted_is_left_out() -> None:
    reasoning = Reasoning(*MARKS, is_shown=False)
    chunks = ReasoningChunks(ChunkWriter(HEAD, False), reasoning)
    events = b"".join(chunks.text(text) for text in ("<think>", "Hm.", "</think>", "Yes"))
    assert [each["content"] for each in deltas(events)] == ["", "", "", "Yes"]
    body = completion_body(HEAD, [Choice("<think>Hm.</think>Yes", FinishReason.STOP)], USAGE, None, reasoning)
    assert msgspec.to_builtins(body)["choices"][0]["message"] == {
        "content": "Yes",
        "role": "assistant",
        "refusal": None,
    }


def test_calls_of_tools_are_found_behind_it() -> None:
    """And not within it."""
    call, _ = CALLS[ToolFormat.HERMES]
    tools, reasoning = ToolUse(ToolFormat.HERMES, ["get_weather"]), Reasoning(*MARKS)
    text = f"<think>I might write {call} next.</think>\n{call}"
    body = msgspec.to_builtins(completion_body(HEAD, [Choice(text, FinishReason.STOP)], USAGE, tools, reasoning))
    choice = body["choices"][0]
    assert choice["message"]["reasoning"] == f"I might write {call} next." and choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"
    chunks = ReasoningChunks(ToolCallChunks(HEAD, False, tools=tools), reasoning)
    found = deltas(b"".join([*(chunks.text(letter) for letter in text), chunks.finish("stop")]))
    assert "".join(each.get("reasoning", "") for each in found) == choice["message"]["reasoning"]
    assert len([each for each in found if "tool_calls" in each]) == 1


def test_tokens_come_in_their_order_where_the_mark_has_several(tokenizer: Tokenizer) -> None:
    """Also with tools, whose chunks keep tokens back."""
    tools, shape = ToolUse(ToolFormat.HERMES, ["get_weather"]), LogprobsShape(tokenizer, is_chat=True)
    pieces = ["<", "think", ">", " I", "</", "think", ">", "Yes", "."]
    for writer in (ChunkWriter(HEAD, False, shape), ToolCallChunks(HEAD, False, shape, tools=tools)):
        chunks, events = ReasoningChunks(writer, Reasoning(*MARKS)), b""
        for number, piece in enumerate(pieces):
            token = ShownToken(number + 10, TokenLogprobs(-float(number), [], []), 0)
            events += chunks.text(piece, [token])
        events += chunks.finish("stop")
        lines = [line.removeprefix("data: ") for line in events.decode().split("\n\n") if line]
        found = [json.loads(line)["choices"][0]["logprobs"] for line in lines]
        logprobs = [entry["logprob"] for each in found if each for entry in each["content"]]
        assert logprobs == [-float(number) for number in range(len(pieces))]


def reasoning_of(tokenizer: Tokenizer, **fields: Any) -> Reasoning | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi </think>"}]} | fields
    return parse_completion(CHAT, msgspec.json.encode(body), tokenizer, ServedModel("m", 512)).reasoning


def test_the_prompt_says_whether_it_has_begun(tokenizer: Tokenizer) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>Well"}]
    ended = [begun[0], {"role": "assistant", "content": "<think>Well</think>So"}]
    assert reasoning_of(tokenizer) == Reasoning(*MARKS)
    assert reasoning_of(tokenizer, include_reasoning=False) == Reasoning(*MARKS, is_shown=False)
    assert reasoning_of(tokenizer, chat_template_kwargs={"always_thinks": True}) == Reasoning(*MARKS, is_open=True)
    assert reasoning_of(tokenizer, chat_template_kwargs={"enable_thinking": False}) == Reasoning(*MARKS)
    assert reasoning_of(tokenizer, messages=begun, continue_final_message=True) == Reasoning(*MARKS, is_open=True)
    assert reasoning_of(tokenizer, messages=ended, continue_final_message=True) == Reasoning(*MARKS)
    in_parts = [begun[0], begun[1] | {"content": [{"type": "text", "text": part} for part in ("<think>", "Well")]}]
    assert reasoning_of(tokenizer, messages=in_parts, continue_final_message=True) == Reasoning(*MARKS, is_open=True)
    assert reasoning_of(tokenizer, guided_choice=["a"]) is None


def test_a_demanded_call_and_a_given_format_leave_no_room_for_it(tmp_path: Path) -> None:
    folder = make_thinking_model(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None), tmp_path)
    template = folder / "chat_template.jinja"
    template.write_text(f"{template.read_text()}{{# tools <tool_call> #}}")
    tokenizer = Tokenizer.from_folder(folder)
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    assert reasoning_of(tokenizer, tools=[strict]) == Reasoning(*MARKS)
    assert reasoning_of(tokenizer, tools=[strict], tool_choice="auto") == Reasoning(*MARKS)
    assert reasoning_of(tokenizer, tools=[strict], tool_choice="required") is None
    assert reasoning_of(tokenizer, tools=[strict], response_format={"type": "json_object"}) is None
    assert reasoning_of(tokenizer, tools=[strict], response_format={"type": "text"}) == Reasoning(*MARKS)


def test_a_prompt_that_ends_with_another_special_token_has_not_begun_it(tokenizer: Tokenizer) -> None:
    begun = tokenizer.encode("Hi <think>", add_special_tokens=False)
    for more, is_open in (([], True), ([min(tokenizer.eos_token_ids)], False)):
        assert Reasoning.of([*begun, *more], "", True, tokenizer) == Reasoning(*MARKS, is_open)


def test_a_model_without_marks_has_none(model_folder: Path) -> None:
    assert reasoning_of(Tokenizer.from_folder(model_folder)) is None
