"""Calls found in text, however it is cut into pieces, and what only looks like one."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.openai.tools.calls import CalledFunction, ToolCallParser, ToolUse, split_calls
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS

HERMES, LLAMA, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL
WEATHER, TIME = CalledFunction("get_weather", '{"city": "Paris"}'), CalledFunction("get_time", "{}")
NAMES = ["get_weather", "get_time"]


def use(format: ToolFormat, is_parallel: bool = True) -> ToolUse:
    return ToolUse(format, NAMES, is_parallel)


def call(format: ToolFormat, name: str, arguments: Any) -> str:
    key = "parameters" if format is LLAMA else "arguments"
    text = json.dumps({"name": name, key: arguments})
    marks = {HERMES: ("<tool_call>", "</tool_call>"), LLAMA: ("", ""), MISTRAL: ("[TOOL_CALLS][", "]")}
    return marks[format][0] + text + marks[format][1]


FOUND: list[tuple[ToolFormat, str, str, list[CalledFunction]]] = [
    *((format, first, "", [WEATHER]) for format, (first, _) in CALLS.items()),
    *((format, f"\n {first}\n", "", [WEATHER]) for format, (first, _) in CALLS.items()),
    (HERMES, "\n".join(CALLS[HERMES]), "", [WEATHER, TIME]),
    (HERMES, "".join(CALLS[HERMES]), "", [WEATHER, TIME]),
    (HERMES, f"Let me look.\n\n{CALLS[HERMES][0]}", "Let me look.", [WEATHER]),
    (HERMES, f"a {CALLS[HERMES][0]} b {CALLS[HERMES][1]} c", "a b c", [WEATHER, TIME]),
    (HERMES, CALLS[HERMES][0].removesuffix("\n</tool_call>"), "", [WEATHER]),
    (HERMES, CALLS[HERMES][0].removesuffix("_call>"), "", [WEATHER]),
    (HERMES, f"<tool_call>{CALLS[HERMES][0]}", "<tool_call>", [WEATHER]),
    (LLAMA, f"<|python_tag|>{CALLS[LLAMA][0]}", "", [WEATHER]),
    (LLAMA, "; ".join(CALLS[LLAMA]), "", [WEATHER, TIME]),
    (LLAMA, CALLS[LLAMA][0].replace("parameters", "arguments"), "", [WEATHER]),
    (LLAMA, "\n".join(CALLS[LLAMA]), "", [WEATHER, TIME]),
    (LLAMA, f"{CALLS[LLAMA][0]} and so on", " and so on", [WEATHER]),
    (MISTRAL, f"Well. {CALLS[MISTRAL][0]}", "Well.", [WEATHER]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}, '
        '{"name": "get_time", "arguments": {}}]',
        "",
        [WEATHER, TIME],
    ),
]
ONLY_TEXT: list[tuple[ToolFormat, str]] = [
    *((format, text) for format in ToolFormat for text in ("", " ", "Hello.", " a  b \n", "{", "[", "<tool", "[TOOL_")),
    *((format, call(format, "unknown", {})) for format in ToolFormat),
    *((format, call(format, "get_time", "now")) for format in ToolFormat),
    *((format, call(format, "get_time", None)) for format in ToolFormat),
    *((format, CALLS[format][0][:-20]) for format in ToolFormat),
    (HERMES, "<tool_call>"),
    (HERMES, "<tool_call> hello </tool_call>"),
    (HERMES, "<tool_call>{'name': 1}</tool_call>"),
    (HERMES, f"{CALLS[HERMES][0].removesuffix('</tool_call>')} more"),
    *(
        (HERMES, call(HERMES, "get_time", {}).replace("{}", f'{{"a": {value}}}'))
        for value in ("NaN", "-Infinity", "1e999", "[" * 200 + "]" * 200)
    ),
    (HERMES, CALLS[LLAMA][0]),
    (LLAMA, f"It is {CALLS[LLAMA][0]}"),
    (LLAMA, '{"city": "Paris"}'),
    (LLAMA, '{"name": "get_time", "parameters": null, "arguments": {}}'),
    (LLAMA, "<|python_tag|>print(1)"),
    (LLAMA, '{"name": ["get_time"], "parameters": {}}'),
    (MISTRAL, "[TOOL_CALLS] get_time"),
    (MISTRAL, "[TOOL_CALLS] []"),
    (MISTRAL, '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}, 5]'),
    (MISTRAL, '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}'),
]
MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"]
DECOYS = st.sampled_from([*MARKS, *'{}[]"\\a \n;'])


def pushed(tools: ToolUse, pieces: list[str]) -> tuple[str, list[CalledFunction]]:
    parser = ToolCallParser(tools)
    found = [each for piece in pieces for each in parser.push(piece)] + parser.finish()
    texts = [each for each in found if isinstance(each, str)]
    assert all(texts)
    return "".join(texts), [each for each in found if isinstance(each, CalledFunction)]


def cuts_of(text: str) -> list[list[str]]:
    """In two at every position, and into characters."""
    return [[text[:at], text[at:]] for at in range(len(text) + 1)] + [list(text)]


@pytest.mark.parametrize(("format", "text", "content", "calls"), FOUND)
def test_calls_are_found_wherever_the_text_is_cut(
    format: ToolFormat, text: str, content: str, calls: list[CalledFunction]
) -> None:
    for pieces in cuts_of(text):
        assert pushed(use(format), pieces) == (content, calls), pieces


@pytest.mark.parametrize(("format", "text"), ONLY_TEXT)
def test_what_only_looks_like_a_call_comes_out_as_it_is(format: ToolFormat, text: str) -> None:
    for pieces in cuts_of(text):
        assert pushed(use(format), pieces) == (text, []), pieces


@pytest.mark.parametrize("depth", [980, 985, 990, 995, 2000])
def test_arguments_however_deep_are_text_or_a_call(depth: int) -> None:
    text = call(HERMES, "get_time", {}).replace("{}", f'{{"a": {"[" * depth}{"]" * depth}}}')
    assert pushed(use(HERMES), [text]) == (text, [])


@pytest.mark.parametrize("format", ToolFormat)
def test_half_of_a_surrogate_pair_is_replaced(format: ToolFormat) -> None:
    """JSON may name it, no encoding of text can hold it, and strict readers of JSON refuse it."""
    text = call(format, "get_weather", {"city": "Z\ud83drich"})
    for pieces in cuts_of(text):
        _, (found,) = pushed(use(format), pieces)
        assert msgspec.json.decode(found.arguments.encode()) == {"city": "Z\N{REPLACEMENT CHARACTER}rich"}


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("city", [*MARKS, "a } b", ']"[', "\\", "é😀\n", '{"name": "get_time"}'])
def test_arguments_may_hold_anything(format: ToolFormat, city: str) -> None:
    text = call(format, "get_weather", {"city": city, "deep": [{"n": [1, 2.5, None]}]})
    for pieces in cuts_of(text):
        content, (found,) = pushed(use(format), pieces)
        assert content == "" and json.loads(found.arguments)["city"] == city


@pytest.mark.parametrize("format", ToolFormat)
def test_where_calls_are_not_parallel_the_first_ends_the_answer(format: ToolFormat) -> None:
    text = f"{CALLS[format][0]}{CALLS[format][1]} more"
    for pieces in cuts_of(text):
        assert pushed(use(format, is_parallel=False), pieces) == ("", [WEATHER])


@given(
    st.sampled_from(ToolFormat),
    st.lists(st.one_of(DECOYS, st.sampled_from(["#weather", "#time"])), max_size=12),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
)
def test_any_mixture_comes_out_the_same_in_any_pieces(format: ToolFormat, parts: list[str], lengths: list[int]) -> None:
    calls = dict(zip(("#weather", "#time"), CALLS[format], strict=True))
    text = "".join(calls.get(part, part) for part in parts)
    pieces, start = [], 0
    for length in itertools.cycle(lengths):
        pieces.append(text[start : start + length])
        start += length
        if start >= len(text):
            break
    assert pushed(use(format), pieces) == split_calls(text, use(format))


@given(st.sampled_from(ToolFormat), st.text(max_size=40))
def test_text_without_calls_is_not_changed(format: ToolFormat, text: str) -> None:
    assert split_calls(text, use(format)) == (text, [])


def test_without_tools_nothing_is_looked_for() -> None:
    assert split_calls(CALLS[HERMES][0], None) == (CALLS[HERMES][0], [])
