"""What a request to /v1/responses may hold, and what it is told when it is wrong."""

from typing import Any

import msgspec
import pytest

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.requests import CHAT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.responses.requests import ResponseRequest, parse_response
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None))
MODEL = ServedModel("tiny", 256)


def nested(depth: int) -> dict[str, Any]:
    """A schema of arrays of arrays."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def parse(**fields: Any) -> ResponseRequest:
    body = {"model": "tiny", "input": "Hello"} | fields
    present = {name: value for name, value in body.items() if value is not msgspec.UNSET}
    return parse_response(msgspec.json.encode(present), TOKENIZER, MODEL)


def chat(messages: list[dict[str, str]], **fields: Any) -> Any:
    body = msgspec.json.encode({"model": "tiny", "messages": messages, "seed": 1} | fields)
    return parse_completion(CHAT, body, TOKENIZER, MODEL)


def test_it_is_the_chat_completion_of_the_same_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
        {"type": "message", "role": "user", "content": "Nothing."},
    ]
    options: Any = {"temperature": 0.5, "top_p": 0.9, "stream": True, "user": "u", "metadata": {"a": "b"}}
    asked = parse(input=items, instructions="Be brief.", max_output_tokens=9, seed=1, **options)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Nothing."},
    ]
    assert asked.completion == chat(messages, max_completion_tokens=9, **options)
    assert (asked.body.instructions, asked.body.max_output_tokens) == ("Be brief.", 9)


def test_a_text_is_one_message_of_the_user() -> None:
    assert parse(seed=1).completion == chat([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    "harmless",
    [
        {"store": False, "background": False, "truncation": "disabled", "include": [], "tools": [], "unknown": None},
        {"max_tool_calls": 5, "stream_options": {"include_obfuscation": False}, "prompt_cache_retention": "24h"},
        {"store": True, "reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "tool_choice": "auto"},
        {"previous_response_id": None, "conversation": None, "text": None, "reasoning": None, "metadata": None},
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    assert parse(seed=1, **harmless).completion.sampling == parse(seed=1).completion.sampling


def test_a_format_is_that_of_a_chat() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    response, chatted = parse(seed=1, text=asked), chat([{"role": "user", "content": "Hello"}], response_format=form)
    assert response.completion.sampling == chatted.sampling and chatted.sampling.grammar


USER = {"role": "user", "content": "hi"}
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": msgspec.UNSET}, "model"),
    ({"input": msgspec.UNSET}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [USER, {"role": "king", "content": "hi"}]}, "input[1].role"),
    ({"input": [USER, {"role": "king", "content": "hi"}], "instructions": "x"}, "input[1].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [USER, {"type": "item_reference", "id": "msg_1"}]}, "input[1].type"),
    ({"input": "word " * 300}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 256}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stream": 1}, "stream"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    *(({name: 1}, name) for name in ("stop", "logit_bias", "presence_penalty", "guided_json", "temprature")),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": nested(700)}}}, "text.format"),
    ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "banana"}}}}, "text.format"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"metadata": {"k": "x" * 513}}, "metadata"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS)
def test_a_bad_field_is_named_as_the_client_named_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert "messages" not in raised.value.message and "max_completion_tokens" not in raised.value.message


def test_stored_conversations_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(RequestError, match="send the whole conversation"):
        parse(previous_response_id="resp_1")
