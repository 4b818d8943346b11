"""What a request to /v1/responses may hold, and what it is told when it is wrong."""

from typing import Any

import msgspec
import pytest

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.requests import CHAT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.fields import MAX_DEPTH
from shared.openai.responses.items import items_of, referred_ids
from shared.openai.responses.output import response_of
from shared.openai.responses.requests import ResponseRequest, parse_response, previous_of
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


def parse(before: list[dict[str, Any]] | None = None, **fields: Any) -> ResponseRequest:
    body = {"model": "tiny", "input": "Hello"} | fields
    present = {name: value for name, value in body.items() if value is not msgspec.UNSET}
    return parse_response(msgspec.json.encode(present), TOKENIZER, MODEL, before)


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


def test_it_goes_on_from_the_messages_before() -> None:
    """What it is told to be comes first, and is of this response alone."""
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    asked = parse(before, previous_response_id="resp_1", instructions="", seed=1)
    own = [{"role": "user", "content": "Hello"}]
    assert asked.completion == chat([{"role": "system", "content": ""}, *before, *own])
    assert (asked.before, asked.input) == (before, own)
    assert parse([], previous_response_id="resp_1", seed=1).completion == chat(own)
    assert (parse().before, parse().input) == ([], own)


@pytest.mark.parametrize(("previous", "found"), [("resp_1", "resp_1"), ("", None), (None, None)])
def test_the_response_before_is_known_without_its_messages(previous: str | None, found: str | None) -> None:
    body = {"model": "tiny", "input": "Hello", "previous_response_id": previous}
    assert previous_of(msgspec.json.encode(body)) == found
    assert found or parse(previous_response_id=previous).before == []


def test_of_the_response_before_nothing_else_is_read() -> None:
    """A large input takes its time, which is not to be the event loop's."""
    assert previous_of(b'{"model": 5, "input": [{}, 7], "previous_response_id": "resp_1"}') == "resp_1"
    for body in (b'{"previous_response_id": 5}', b"{", b"[]"):
        with pytest.raises(RequestError):
            previous_of(body)


def test_mistakes_are_told_by_the_place_in_the_input() -> None:
    """Whatever else the chat has before it."""
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    for options in ({}, {"instructions": "Be brief."}, {"before": before}, {"before": before, "instructions": "x"}):
        with pytest.raises(RequestError) as refused:
            parse(input=[USER, {"role": "tool", "content": "a"}], **options)
        place = "input[1].tool_call_id"
        assert (refused.value.param, refused.value.message) == (place, f"{place} is missing")
    with pytest.raises(RequestError) as refused:
        parse([{"role": "king", "content": "Hi"}])
    assert refused.value.param == "input[0].role", "what is stored is not the input's, and has no better name"


def test_what_is_too_long_is_told_by_this_endpoints_names() -> None:
    with pytest.raises(RequestError, match=r"\d+ in input, 250 in max_output_tokens\)$") as refused:
        parse(max_output_tokens=250)
    assert (refused.value.param, refused.value.code) == ("max_output_tokens", "context_length_exceeded")
    with pytest.raises(RequestError, match="the model 'messages' does not exist") as refused:
        parse(model="messages")
    assert (refused.value.param, refused.value.status) == ("model", 404)


def test_a_format_is_nested_up_to_a_depth() -> None:
    """Its own objects count too."""
    for depth, is_taken in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False)):
        asked = {"format": {"type": "json_schema", "name": "a", "schema": nested(depth)}}
        if is_taken:
            assert parse(text=asked).completion.sampling.grammar
        else:
            with pytest.raises(RequestError, match=r"text.format is nested more than"):
                parse(text=asked)


@pytest.mark.parametrize(
    "harmless",
    [
        {"store": False, "background": False, "truncation": "disabled", "include": [], "tools": [], "unknown": None},
        {"max_tool_calls": 5, "stream_options": {"include_obfuscation": False}, "prompt_cache_retention": "24h"},
        {"store": True, "reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "tool_choice": "auto"},
        {"previous_response_id": None, "conversation": None, "text": None, "reasoning": None, "metadata": None},
        {"reasoning": {"effort": "none", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
        {"user": "x" * 64, "prompt_cache_key": "x" * 64, "safety_identifier": "x" * 128},
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
OUTPUT_TEXT = {"type": "output_text", "text": "Yes."}
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
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"effort": "none", "mode": "pro"}}, "reasoning"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"input": [USER, {"type": "reasoning", "content": [{"type": "text", "text": "x"}]}]}, "input[1].content[0]"),
    ({"input": [USER, {"type": "function_call", "call_id": "a", "name": "f"}]}, "input[1].arguments"),
    ({"input": [USER, {"type": "function_call", "arguments": "{}", "name": "f"}]}, "input[1].call_id"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "a"}]}, "input[1].output"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input[1].call_id"),
    *(({name: 1}, name) for name in ("stop", "logit_bias", "presence_penalty", "guided_json", "temprature")),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": nested(700)}}}, "text.format"),
    ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "banana"}}}}, "text.format"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"metadata": {"k": "x" * 513}}, "metadata"),
    *(({name: "x" * 65}, name) for name in ("user", "prompt_cache_key")),
    ({"safety_identifier": "x" * 129}, "safety_identifier"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS)
def test_a_bad_field_is_named_as_the_client_named_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert "messages" not in raised.value.message and "max_completion_tokens" not in raised.value.message


def test_stored_conversations_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(RequestError, match="send the whole conversation") as refused:
        parse(previous_response_id="resp_1")
    assert refused.value.code == "unsupported_parameter"
    with pytest.raises(RequestError, match="name previous_response_id, or send the whole conversation") as refused:
        parse(conversation="conv_1")
    assert (refused.value.param, refused.value.code) == ("conversation", "unsupported_parameter")


def test_items_are_messages_calls_and_their_outputs() -> None:
    for item, said in (
        ({"type": "item_reference", "id": "msg_1"}, "send the item itself"),
        ({"type": "computer_call", "call_id": "a"}, "'computer_call' is not supported; message, reasoning, function"),
        ({"type": "message", "content": "a"}, r"^input\[0\].role is missing$"),
    ):
        with pytest.raises(RequestError, match=said):
            parse(input=[item])


def test_items_that_are_referred_to_are_those_of_the_answers() -> None:
    answer = {
        "id": "resp_r1",
        "output": [
            {"type": "reasoning", "id": "rs_r1", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
            {"type": "message", "id": "msg_r1_1", "role": "assistant", "content": [OUTPUT_TEXT | {"annotations": []}]},
        ],
    }
    stored = items_of(msgspec.json.encode(answer))
    references = [{"type": "item_reference", "id": id} for id in stored]
    body = {"model": "tiny", "input": [USER, *references, USER], "seed": 1}
    assert referred_ids(msgspec.json.encode(body)) == ["rs_r1", "msg_r1_1"]
    asked = parse_response(msgspec.json.encode(body), TOKENIZER, MODEL, items=stored)
    assert asked.input == [USER, {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}, USER]
    with pytest.raises(RequestError, match="no such item: rs_r1; send the item itself") as refused:
        parse_response(msgspec.json.encode(body), TOKENIZER, MODEL, items={})
    assert (refused.value.param, refused.value.status) == ("input[1].id", 404)


def test_of_references_nothing_else_is_read() -> None:
    for body in (b'{"input": 5}', b'{"input": [7, {"type": "item_reference", "id": 5}, {"id": "a"}]}', b"{}"):
        assert referred_ids(body) == []
    for id, response in (("fc_r1", "resp_r1"), ("rs_r1_12", "resp_r1"), ("msg_a.b", None), ("resp_r1", None)):
        assert response_of(id) == response
