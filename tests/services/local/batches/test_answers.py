"""What of a line of an output file is the answer."""

import json
from typing import Any

import msgspec
import pytest

from services.local.batches.answers import answer_in
from shared.openai.completions.answers import AnswerHead, Choice, CompletionUsage, completion_body
from shared.openai.completions.requests import CHAT
from shared.openai.reasoning import Reasoning
from shared.openai.responses.answers import ended
from shared.openai.tools.calls import ToolUse
from shared.protocol.sampling import FinishReason
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS
from tests.shared.openai.responses.test_answers import USAGE, begun

CALL, OTHER_CALL = CALLS[ToolFormat.HERMES]
TOOLS = ToolUse(ToolFormat.HERMES, ["get_weather", "get_time"])


def line_of(*texts: str, cut: int = 0) -> dict[str, Any]:
    """As this server writes it, of choices with these texts, of which the last ``cut`` are cut."""
    reasons = [*[FinishReason.STOP] * (len(texts) - cut), *[FinishReason.LENGTH] * cut]
    choices = [Choice(text, reason) for text, reason in zip(texts, reasons, strict=True)]
    body = completion_body(AnswerHead(CHAT, "id", 0, "m"), choices, CompletionUsage.of(1, 1), TOOLS)
    return {"response": {"body": msgspec.to_builtins(body)}}


def names(calls: list[dict[str, Any]]) -> list[str]:
    return [call["function"]["name"] for call in calls]


def test_a_text_is_the_answer() -> None:
    assert answer_in(line_of("Hello.")).columns() == {"answer": "Hello.", "finish_reason": "stop", "error": None}


@pytest.mark.parametrize("content", [None, ""])
def test_calls_alone_are_the_answer(content: str | None) -> None:
    line = line_of(f"{CALL}{OTHER_CALL}")
    line["response"]["body"]["choices"][0]["message"]["content"] = content  # servers have one or the other
    answer = answer_in(line)
    assert names(json.loads(answer.answer or "")) == ["get_weather", "get_time"]
    assert answer.finish_reason == "tool_calls"


def test_calls_and_the_text_beside_them_are_both_in_the_answer() -> None:
    answer = json.loads(answer_in(line_of(f"I look.\n{CALL}")).answer or "")
    assert (answer["content"], names(answer["tool_calls"])) == ("I look.", ["get_weather"])


@pytest.mark.parametrize(("cut", "reason"), [(0, "stop"), (2, "length"), (1, '["stop","length"]')])
def test_of_several_choices_each_that_is_cut_is_told_of(cut: int, reason: str) -> None:
    answer = answer_in(line_of("One.", "Two.", cut=cut))
    assert (answer.answer, answer.finish_reason) == ('["One.","Two."]', reason)


@pytest.mark.parametrize("thought", ["", "<think>Which?</think>"])
def test_of_a_response_what_was_said_and_called_is_the_answer(thought: str) -> None:
    """Not what was thought, as in a chat."""
    marks = Reasoning("<think>", "</think>")
    for text, reason in ((f"I look.\n{CALL}", "tool_calls"), (CALL, "tool_calls"), ("Hello.", "stop"), ("", "length")):
        finish_reason = FinishReason.LENGTH if reason == "length" else FinishReason.STOP
        body = ended(begun(), thought + text, finish_reason, USAGE, 21, TOOLS, marks)
        answer = answer_in({"response": {"body": msgspec.to_builtins(body)}})
        told = json.loads(answer.answer or "") if reason == "tool_calls" else answer.answer
        if isinstance(told, dict):
            assert told["content"] == "I look."
            told = told["tool_calls"]
        assert (names(told) if isinstance(told, list) else told) == (["get_weather"] if CALL in text else text)
        assert answer.finish_reason == reason
