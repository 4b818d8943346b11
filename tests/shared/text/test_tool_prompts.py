"""Tools on their way into a prompt, through chat templates of three families, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from transformers import AutoTokenizer

from services.offline_queue.batches.input import BatchInput
from services.offline_queue.batches.results import ResultWriter
from shared.openai.completions.answers import AnswerHead, CompletionUsage
from shared.openai.completions.chunks import ToolCallChunks
from shared.openai.completions.requests import CHAT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError
from shared.openai.served_model import ServedModel
from shared.openai.shown_text import shown_output
from shared.openai.tools.calls import ToolUse
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import ChoiceOutput
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat, tool_format_of
from tests.services.gateway.tool_models import CALLS, TEMPLATES, TIME, USER, WEATHER, make_model

MODEL = ServedModel("tiny", 2048)
ARGUMENTS = '{"city": "Paris"}'
NO_PARAMETERS = {
    "type": "function",
    "function": TIME["function"] | {"parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def folders(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[ToolFormat, Path]:
    return {each: make_model(model_folder, each, tmp_path_factory.mktemp(each.value)) for each in ToolFormat}


def conversation(call_id: str = "abcdefgh1") -> list[dict[str, Any]]:
    called = {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    return [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": call_id, "content": "18 degrees"},
        {"role": "user", "content": "And now?"},
    ]


def parse(tokenizer: Tokenizer, messages: list[dict[str, Any]] | None = None, **fields: Any) -> CompletionRequest:
    body = {"model": "tiny", "messages": messages or [USER], "seed": 1} | fields
    return parse_completion(CHAT, msgspec.json.encode(body), tokenizer, MODEL)


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("tools", [None, [WEATHER, NO_PARAMETERS]])
def test_the_prompt_is_the_one_that_transformers_makes(
    folders: dict[ToolFormat, Path], format: ToolFormat, tools: list[Any] | None
) -> None:
    reference = AutoTokenizer.from_pretrained(folders[format])
    messages = conversation()
    expected = json.loads(json.dumps(messages))
    expected[1]["content"] = ""
    expected[1]["tool_calls"][0]["function"]["arguments"] = json.loads(ARGUMENTS)
    rendered = reference.apply_chat_template(expected, tools=tools, add_generation_prompt=True, return_dict=False)
    fields = {"tools": tools} if tools else {}
    assert parse(Tokenizer.from_folder(folders[format]), messages, **fields).prompt_token_ids == rendered


def test_a_function_without_parameters_is_shown_as_one_that_takes_none(
    folders: dict[ToolFormat, Path], tmp_path: Path
) -> None:
    """Hermes' own template goes through them, whether there are any."""
    tokenizer = Tokenizer.from_folder(folders[ToolFormat.HERMES])
    assert parse(tokenizer, tools=[TIME]) == parse(tokenizer, tools=[NO_PARAMETERS])
    make_model(folders[ToolFormat.HERMES], ToolFormat.HERMES, tmp_path)
    loop = "{% for name, field in tools[0].function.parameters.properties|items %}{{ name }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(f"{loop} tools <tool_call>")
    of_hermes = Tokenizer.from_folder(tmp_path)
    for tools, shown in (([TIME], " tools <tool_call>"), ([WEATHER], "city tools <tool_call>")):
        assert of_hermes.decode(parse(of_hermes, tools=tools).prompt_token_ids) == shown


def test_the_family_is_known_by_the_template() -> None:
    for each in ToolFormat:
        assert tool_format_of((TEMPLATES / f"{each.value}.jinja").read_text()) is each
    assert tool_format_of("{% for message in messages %}{{ message.content }}{% endfor %}") is None
    assert tool_format_of("{{ tools }}<tool_call><function=name></function></tool_call>") is None
    assert tool_format_of("{{ tools }}[TOOL_CALLS]name[ARGS]{}") is None


def test_what_a_request_allows(folders: dict[ToolFormat, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders[ToolFormat.HERMES])
    plain = parse(tokenizer)
    both = parse(tokenizer, tools=[WEATHER, TIME], tool_choice="auto")
    assert both.tools == ToolUse(ToolFormat.HERMES, ["get_weather", "get_time"])
    assert len(both.prompt_token_ids) > len(plain.prompt_token_ids)
    alone = parse(tokenizer, tools=[TIME], parallel_tool_calls=False)
    assert alone.tools == ToolUse(ToolFormat.HERMES, ["get_time"], is_parallel=False)
    for fields in ({"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}, {"tools": None, "tool_choice": "auto"}):
        assert parse(tokenizer, **fields) == plain


UNKEPT = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "string"}}}}
NAMELESS = {"type": "function", "function": {"name": "get weather"}}
UNKEPT_ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "unknown"}}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ({"tools": [WEATHER], "response_format": UNKEPT_ANSWER}, "response_format"),
    ({"tools": [WEATHER], "guided_choice": ["yes", "no"]}, "guided_choice"),
    ({"tools": [UNKEPT], "tool_choice": "required"}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [WEATHER, {"type": "function"}]}, "tools[1].type"),
    ({"tools": [NAMELESS]}, "tools[0].function.name"),
    ({"tools": [TIME] * 129}, "tools"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"messages": conversation()[:1] + conversation()[2:]}, "messages[1].tool_call_id"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [{"role": "user", "tool_calls": conversation()[1]["tool_calls"]}]}, "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_bad_field_is_named(folders: dict[ToolFormat, Path], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(Tokenizer.from_folder(folders[ToolFormat.HERMES]), **fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_arguments_that_are_no_object_are_named(folders: dict[ToolFormat, Path]) -> None:
    messages = conversation()
    for arguments in ("[]", "{", "text"):
        messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
        with pytest.raises(RequestError) as raised:
            parse(Tokenizer.from_folder(folders[ToolFormat.HERMES]), messages)
        assert raised.value.param == "messages[1].tool_calls[0].function.arguments"


def test_what_a_template_refuses_is_told_in_its_words(folders: dict[ToolFormat, Path]) -> None:
    with pytest.raises(RequestError, match="length 9"):
        parse(Tokenizer.from_folder(folders[ToolFormat.MISTRAL]), conversation("call_1"))
    messages = conversation()
    messages[1]["tool_calls"] *= 2
    with pytest.raises(RequestError, match="single tool-calls"):
        parse(Tokenizer.from_folder(folders[ToolFormat.LLAMA]), messages)


def test_a_template_without_tools_refuses_them(tokenizer: Tokenizer) -> None:
    for fields, param in (({"tools": [WEATHER]}, "tools"), ({"messages": conversation()}, "messages")):
        with pytest.raises(RequestError, match="takes no tools") as raised:
            parse(tokenizer, **fields)
        assert (raised.value.param, raised.value.code) == (param, "unsupported_value")
    assert parse(tokenizer, tools=[WEATHER], tool_choice="none") == parse(tokenizer)


@pytest.mark.parametrize("format", ToolFormat)
def test_a_batch_line_answers_with_its_calls(folders: dict[ToolFormat, Path], format: ToolFormat) -> None:
    tokenizer = Tokenizer.from_folder(folders[format])
    record = BatchRecord("batch_1", CHAT, "file-1", "24h", 1, 2, "in_progress", model="tiny")
    body = {"model": "tiny", "messages": [USER], "tools": [WEATHER]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).encode()
    parsed = BatchInput(record, tokenizer, MODEL).parse([(1, line)])
    result = OfflineResult("batch_1.1", tokenizer.encode(CALLS[format][0]), FinishReason.STOP)
    written = json.loads(ResultWriter(record, "", tokenizer).output_line(parsed.lines[0], result))
    (choice,) = ChatCompletion.model_validate(written["response"]["body"]).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (called,) = choice.message.tool_calls or []
    assert called.type == "function" and called.function.to_dict() == {"name": "get_weather", "arguments": ARGUMENTS}
    assert (len(called.id) == 9) is (format is ToolFormat.MISTRAL)


@pytest.mark.parametrize("format", ToolFormat)
def test_tokens_one_by_one_make_the_same_calls(folders: dict[ToolFormat, Path], format: ToolFormat) -> None:
    tokenizer = Tokenizer.from_folder(folders[format])
    token_ids = tokenizer.encode(CALLS[format][0])
    asked = parse(tokenizer, tools=[WEATHER])
    assert asked.tools is not None
    detokenizer = tokenizer.detokenizer((), shows_calls=True)
    chunks = ToolCallChunks(AnswerHead(CHAT, "r1", 1, "m"), include_usage=True, tools=asked.tools)
    events = [chunks.start()]
    events += [chunks.text(text) for token_id in token_ids if (text := detokenizer.push([token_id]))]
    events += [
        chunks.text(detokenizer.finish()),
        chunks.finish(FinishReason.STOP),
        chunks.end(CompletionUsage.of(1, 2)),
    ]
    data = b"".join(events).decode().split("\n\n")
    parsed = [ChatCompletionChunk.model_validate_json(each[6:], strict=True) for each in data if "{" in each]
    deltas = [chunk.choices[0].delta for chunk in parsed if chunk.choices]
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert (call.index, call.type, call.function and call.function.name) == (0, "function", "get_weather")
    assert call.function is not None and call.function.arguments == ARGUMENTS
    assert not "".join(delta.content or "" for delta in deltas)
    assert [chunk.choices[0].finish_reason for chunk in parsed if chunk.choices][-1] == "tool_calls"
    text, _ = shown_output(tokenizer, ChoiceOutput(token_ids, FinishReason.STOP), asked.sampling, shows_calls=True)
    assert text == CALLS[format][0]
