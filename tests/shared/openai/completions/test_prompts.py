"""What a chat template is given of a conversation, and which prompts are texts, token ids, or several."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest
import tokenizers
from tokenizers import models, processors

from shared.openai.completions.prompts import (
    MAX_PROMPTS,
    Message,
    chat_prompt,
    content_text,
    prompt_schema,
    text_prompts,
)
from shared.openai.errors import RequestError
from shared.openai.tools.definitions import Tool
from shared.text.chat_options import ChatOptions
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.tool_models import WEATHER
from tests.shared.text.test_tokenizer import BYTE_LEVEL, FOLDER

MOST = 4096  # tokens
TEMPLATE = '{# <tool_call> #}{{ {"messages": messages, "tools": tools, "begun": add_generation_prompt} | tojson }}'
SHOWN = Tokenizer(tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")), TEMPLATE, {})


def shown(messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """What the template has been given."""
    token_ids = chat_prompt(msgspec.convert(messages, list[Message]), SHOWN, MOST, **options)
    found: dict[str, Any] = json.loads(SHOWN.decode(token_ids, skip_special_tokens=False))
    return found


def call(id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_messages_come_to_the_template_one_by_one() -> None:
    calls = [call("c1", "get_weather", '{"city": "Paris"}'), call("c2", "get_time")]
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}, {"type": "text", "text": ""}]
    told = shown(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts, "reasoning": "none of the user's"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "Hm."},
            {"role": "tool", "tool_call_id": "c2", "content": parts[:1]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "assistant", "content": "Yes.", "tool_calls": [], "reasoning_content": "Well."},
            {"role": "assistant", "content": None, "reasoning": "new", "reasoning_content": "old"},
            {"role": "system", "content": ""},
        ]
    )
    for each in calls:
        each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    assert told["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": calls, "reasoning": "Hm.", "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c2", "name": "get_time", "content": "Hel"},
        {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "sunny"},
        {"role": "assistant", "content": "Yes.", "reasoning": "Well.", "reasoning_content": "Well."},
        {"role": "assistant", "content": "", "reasoning": "new", "reasoning_content": "new"},
        {"role": "system", "content": ""},
    ]
    assert (told["tools"], told["begun"]) == (None, True)


def test_tools_and_options_come_to_the_template() -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    bare = {"type": "function", "function": {"name": "f", "parameters": {}}}
    tools = msgspec.convert([strict, bare], list[Tool])
    told = shown([{"role": "user", "content": "Hi"}], tools=tools, options=ChatOptions(add_generation_prompt=False))
    assert told["tools"] == [WEATHER, bare], "whether an answer is held to a function is not the model's concern"
    assert told["begun"] is False


USER = {"role": "user", "content": "Hi"}
CALLING = {"role": "assistant", "tool_calls": [call("c1", "f")]}
BAD: list[tuple[list[dict[str, Any]], str, str]] = [
    ([], "messages", "give at least one message"),
    ([{"role": "king", "content": "a"}], "messages[0].role", "use one of system, user, assistant, tool, developer"),
    ([USER, {"role": "user"}], "messages[1].content", "no content"),
    ([USER, CALLING, {"role": "tool", "tool_call_id": "c1"}], "messages[2].content", "no content"),
    ([CALLING, {"role": "tool", "content": "a"}], "messages[1].tool_call_id", r"messages\[1\].tool_call_id is missing"),
    (
        [CALLING, {"role": "tool", "content": "a", "tool_call_id": "c2"}],
        "messages[1].tool_call_id",
        "no message before",
    ),
    (
        [{"role": "tool", "content": "a", "tool_call_id": "c1"}, CALLING],
        "messages[0].tool_call_id",
        "no message before",
    ),
    ([USER | {"tool_calls": [call("c1", "f")]}], "messages[0].tool_calls", "only messages of the assistant"),
    ([USER | {"content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "messages[0].content[1]", "'image'"),
    ([USER | {"content": [{"type": "image_url"}]}], "messages[0].content[0]", "only text is"),
    ([USER | {"content": [{"type": "text"}]}], "messages[0].content[0].text", "text is missing"),
]


@pytest.mark.parametrize(("messages", "param", "said"), BAD)
def test_what_no_template_could_be_given_is_refused(messages: list[dict[str, Any]], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        shown(messages)
    assert refused.value.param == param


def test_calls_are_refused_where_the_template_writes_none() -> None:
    with pytest.raises(RequestError, match="tool calls are not supported"):
        chat_prompt(msgspec.convert([USER, CALLING], list[Message]), BYTE_LEVEL, MOST)
    assert chat_prompt(msgspec.convert([USER], list[Message]), BYTE_LEVEL, MOST)


def test_a_text_may_have_several_kinds_of_parts() -> None:
    (message,) = msgspec.convert([USER | {"content": [{"type": "input_text", "text": "a"}]}], list[Message])
    assert content_text("where", message.content, ("input_text", "text")) == "a"
    with pytest.raises(RequestError, match="'input_text' is not supported"):
        content_text("where", message.content)


def with_begin() -> Tokenizer:
    """Of a vocabulary without most letters; a token comes before every text."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 2)])
    return Tokenizer(backend, None, {})


SMALL = with_begin()


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("ab", [[2, 0, 1]]),
        (["ab"], [[2, 0, 1]]),
        ([0, 2], [[0, 2]]),
        ([[0, 2]], [[0, 2]]),
        (["a", [1], "b"], [[2, 0], [1], [2, 1]]),
        ([[1], "b"], [[1], [2, 1]]),
        (["a"] * MAX_PROMPTS, [[2, 0]] * MAX_PROMPTS),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, found: list[list[int]]) -> None:
    assert text_prompts(prompt, SMALL, MOST) == found


def test_what_stands_before_every_text_may_be_left_out() -> None:
    assert text_prompts(["ab", [2, 0]], SMALL, MOST, add_special_tokens=False) == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("prompt", "param", "said"),
    [
        (None, "field", "^field is missing; give a text or a list of token ids$"),
        (5, "field", "is missing"),
        ({"a": 1}, "field", "is missing"),
        ("", "field", "^field is empty$"),
        ([], "field", "is empty"),
        ([[]], "field[0]", r"^field\[0\] is empty$"),
        (["a", ""], "field[1]", "is empty"),
        (["a", 5], "field[1]", "is missing"),
        ([0, True], "field[1]", r"^field\[1\] is not a token id$"),
        ([0, "a"], "field[1]", "is not a token id"),
        ([[0], [1, 3]], "field[1][1]", "^token id 3 is outside the vocabulary of 3$"),
        ([-1], "field[0]", "^token id -1 is outside"),
        (["a"] * 3, "field", "^field has 3 fields; a request takes 2 at most$"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any, param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        text_prompts(prompt, SMALL, MOST, field="field", max_prompts=2)
    assert refused.value.param == param


def test_the_schema_has_prompts_as_they_may_be() -> None:
    schema = jsonschema.Draft202012Validator(prompt_schema(2))
    for good in ("a", ["a"], ["a", "b"], [0], [0, 5, 7], [[0, 5, 7]], [[0], [5]]):
        assert schema.is_valid(good), good
    for bad in ("", [], [""], [[]], ["a"] * 3, [[0]] * 3, [-1], [[0], []], None, 5):
        assert not schema.is_valid(bad), bad


def test_a_text_without_any_known_character_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^prompt holds no character that the model's vocabulary knows$") as refused:
        text_prompts("zz", SMALL, MOST, add_special_tokens=False)
    assert refused.value.param == "prompt"
