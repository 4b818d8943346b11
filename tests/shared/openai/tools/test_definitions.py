"""Which tools may be called, what a model is told of them, and what calls are called."""

import re
from typing import Any

import msgspec
import pytest

from shared.openai.errors import RequestError
from shared.openai.fields import MAX_DEPTH
from shared.openai.tools.calls import CalledFunction, ToolUse
from shared.openai.tools.definitions import (
    MAX_TOOLS,
    MessageToolCall,
    Tool,
    finish_reason_of,
    message_call,
    template_calls,
    template_tools,
    tool_use,
)
from shared.protocol.sampling import FinishReason
from shared.text.tool_format import ToolFormat

HERMES = ToolFormat.HERMES
FIRST = {"type": "function", "function": {"name": "first", "parameters": {"type": "object"}, "strict": True}}
SECOND = {"type": "function", "function": {"name": "second", "description": "d"}}


def used(
    tools: list[Any] | None, choice: Any = None, is_parallel: bool = True, format: ToolFormat | None = HERMES
) -> ToolUse | None:
    return tool_use(msgspec.convert(tools, list[Tool] | None), choice, is_parallel, format)


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("is_parallel", [True, False])
def test_all_may_be_called_or_those_that_are_demanded(is_parallel: bool) -> None:
    for choice, names in (
        (None, ["first", "second"]),
        ("auto", ["first", "second"]),
        ("required", ["first", "second"]),
        (named("second"), ["second"]),
        (named("first"), ["first"]),
    ):
        assert used([FIRST, SECOND], choice, is_parallel) == ToolUse(HERMES, names, is_parallel)


def test_none_is_called_where_there_are_none_or_none_is_wanted() -> None:
    assert used(None) is used([]) is used(None, "none") is used([], "auto") is used([FIRST], "none") is None
    assert used([{"type": "custom"}], "none", format=None) is None, "whatever they are"


@pytest.mark.parametrize(
    ("tools", "choice", "param", "said"),
    [
        (None, "required", "tool_choice", "^tool_choice demands a call, and there are no tools$"),
        ([], named("first"), "tool_choice", "there are no tools"),
        ([FIRST], named("second"), "tool_choice", "^tool_choice names 'second', which is none of the tools$"),
        ([FIRST], "always", "tool_choice", "must be auto, none, required or the name of a function"),
        ([FIRST], named(5), "tool_choice", "must be auto"),
        ([FIRST], {"type": "custom", "function": {"name": "first"}}, "tool_choice", "must be auto"),
        ([FIRST], {"function": {"name": "first"}}, "tool_choice", "must be auto"),
        ([FIRST, {"type": "custom"}], None, "tools[1].type", "^a tool of type 'custom' is not supported"),
        ([{"type": "custom", "function": {"name": "f"}}], None, "tools[0].type", "'custom'"),
        ([{"type": "function"}], "auto", "tools[0].type", "only functions are"),
        (
            [FIRST] * (MAX_TOOLS + 1),
            None,
            "tools",
            f"^there are {MAX_TOOLS + 1} tools; at most {MAX_TOOLS} are allowed$",
        ),
    ],
)
def test_what_cannot_be_called_is_refused(tools: Any, choice: Any, param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        used(tools, choice)
    assert refused.value.param == param


def test_as_many_tools_as_are_allowed_are_taken() -> None:
    found = used([FIRST] * MAX_TOOLS)
    assert found is not None and len(found.names) == MAX_TOOLS


def test_a_template_that_writes_no_calls_takes_no_tools() -> None:
    with pytest.raises(RequestError, match=r"^tools are not supported: ") as refused:
        used([FIRST], format=None)
    assert (refused.value.param, refused.value.code) == ("tools", "unsupported_value")


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_parameters_and_arguments_are_nested_up_to_a_depth() -> None:
    for depth in (MAX_DEPTH, MAX_DEPTH + 1):
        tool = {"type": "function", "function": {"name": "f", "parameters": nested(depth)}}
        call = MessageToolCall("c", CalledFunction("f", msgspec.json.encode(nested(depth)).decode()))
        if depth == MAX_DEPTH:
            assert used([FIRST, tool]) and template_calls("calls", [call])
            continue
        with pytest.raises(RequestError, match="nested more than") as refused:
            used([FIRST, tool])
        assert refused.value.param == "tools[1].function.parameters"
        with pytest.raises(RequestError, match="nested more than") as refused:
            template_calls("calls", [call])
        assert refused.value.param == "calls[0].function.arguments"


def test_a_template_is_shown_functions_as_they_were_given() -> None:
    shown = template_tools(msgspec.convert([FIRST, SECOND], list[Tool]))
    assert [each["type"] for each in shown] == ["function", "function"]
    assert [each["function"] for each in shown] == [
        {"name": "first", "parameters": {"type": "object"}},
        {"name": "second", "description": "d", "parameters": {"type": "object", "properties": {}}},
    ]


def test_a_template_is_shown_arguments_as_an_object() -> None:
    calls = [MessageToolCall("c1", CalledFunction("f", '{"a": [1]}')), MessageToolCall("c2", CalledFunction("g", "{}"))]
    assert template_calls("calls", calls) == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    calls[1] = MessageToolCall("c2", CalledFunction("g", ""))
    assert template_calls("calls", calls)[1]["function"] == {"name": "g", "arguments": {}}
    for arguments in ("[]", "{", " ", "5", "[" * 100_000):
        calls[1] = MessageToolCall("c2", CalledFunction("g", arguments))
        with pytest.raises(RequestError, match="not a JSON object") as refused:
            template_calls("calls", calls)
        assert refused.value.param == "calls[1].function.arguments"


def test_calls_have_ids_of_their_own_that_stay() -> None:
    function = CalledFunction("f", "{}")
    places = [(request, choice, number) for request in ("r1", "r2") for choice in (0, 1) for number in (0, 1)]
    for format in ToolFormat:
        calls = [message_call(function, format, *place) for place in places]
        assert calls == [message_call(function, format, *place) for place in places]
        assert len({call.id for call in calls}) == len(places) and {call.type for call in calls} == {"function"}
        assert all(call.function is function for call in calls)
        if format is ToolFormat.MISTRAL:
            assert {len(call.id) for call in calls} == {9} and all(call.id.isalnum() for call in calls)
        else:
            assert all(re.fullmatch("call_[0-9a-f]{24}", call.id) for call in calls), "as long as OpenAI's"


@pytest.mark.parametrize(
    ("reason", "num_calls", "is_parallel", "told"),
    [
        ("stop", 0, True, "stop"),
        ("stop", 2, True, "tool_calls"),
        ("length", 0, True, "length"),
        ("length", 1, True, "length"),
        ("stop", 1, False, "tool_calls"),
        ("length", 0, False, "length"),
        ("length", 1, False, "tool_calls"),
    ],
)
def test_an_answer_ends_with_calls_where_it_was_not_cut(
    reason: str, num_calls: int, is_parallel: bool, told: str
) -> None:
    assert finish_reason_of(FinishReason(reason), num_calls, ToolUse(HERMES, ["f"], is_parallel)) == told
    assert finish_reason_of(FinishReason(reason), 0, None) == reason
