"""vLLM's fields of how a prompt is made, against what transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
import transformers
from msgspec.structs import replace

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.requests import CHAT, TEXT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.thinking_model import make_thinking_model
from tests.shared.openai.completions.test_requests import MODEL, TOKENIZER, nested, parse
from tests.shared.openai.test_shown_prompt import with_bos
from tests.shared.text.test_tokenizer import FOLDER

USER = {"role": "user", "content": "Name a colour."}
BEGUN = {"role": "assistant", "content": "The colour is "}
OPEN, CONTINUED = {"add_generation_prompt": True}, {"continue_final_message": True}
DOCUMENTS = [{"title": "A", "text": "first"}, {"title": "B", "text": "second"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None)
    return make_thinking_model(model, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("messages", "fields", "given"),
    [
        ([USER], {}, OPEN),
        ([USER], {"add_generation_prompt": False}, {}),
        ([USER, BEGUN], CONTINUED, CONTINUED),
        ([USER, BEGUN], CONTINUED | {"add_generation_prompt": False}, CONTINUED),
        ([USER], {"documents": DOCUMENTS}, {"documents": DOCUMENTS} | OPEN),
        ([USER], {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False} | OPEN),
        ([USER], {"chat_template_kwargs": {"always_thinks": True}}, {"always_thinks": True} | OPEN),
        ([USER], {"reasoning_effort": "none"}, {"enable_thinking": False, **OPEN}),
        ([USER], {"reasoning_effort": "high"}, {"enable_thinking": True} | OPEN),
    ],
)
def test_prompts_are_those_of_transformers(
    folder: Path, messages: list[dict[str, str]], fields: dict[str, Any], given: dict[str, Any]
) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    body = msgspec.json.encode({"model": "m", "messages": messages} | fields)
    asked = parse_completion(CHAT, body, Tokenizer.from_folder(folder), ServedModel("m", 512))
    assert asked.prompt_token_ids == reference.apply_chat_template(messages, return_dict=False, **given)


def test_what_a_client_wishes_for_itself_wins(folder: Path) -> None:
    tokenizer, model = Tokenizer.from_folder(folder), ServedModel("m", 512)

    def prompt(**fields: Any) -> list[int]:
        body = msgspec.json.encode({"model": "m", "messages": [USER]} | fields)
        return parse_completion(CHAT, body, tokenizer, model).prompt_token_ids

    thinks_not = {"enable_thinking": False}
    assert prompt(reasoning_effort="high", chat_template_kwargs=thinks_not) == prompt(chat_template_kwargs=thinks_not)
    assert prompt(chat_template_kwargs={"self": 1, "unknown": [None]}) == prompt()


def test_earlier_reasoning_is_shown_to_the_template(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    for name in ("reasoning", "reasoning_content"):
        messages = [USER, {"role": "assistant", "content": "Red.", name: "Hm."}, USER]
        body = msgspec.json.encode({"model": "m", "messages": messages})
        asked = parse_completion(CHAT, body, tokenizer, ServedModel("m", 512))
        assert "<think>\nHm.\n</think>\n\nRed." in tokenizer.decode(asked.prompt_token_ids)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"continue_final_message": True, "messages": [{"role": "user", "content": "  "}]}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"range": 1}}, "chat_template_kwargs.range"),
    ({"chat_template_kwargs": ["a"]}, "chat_template_kwargs"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),  # this model's template knows of none
    ({"documents": ["a"]}, "documents[0]"),
    ({"chat_template_kwargs": {"a": nested(101)}}, "chat_template_kwargs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 250, "max_tokens": 10}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_what_is_wrong_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(CHAT, **fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_prompt_is_cut_to_its_end_or_its_beginning() -> None:
    whole = list(range(5, 405))
    room = MODEL.max_model_len - 6
    assert parse(TEXT, prompt=whole, truncate_prompt_tokens=7).prompt_token_ids == whole[-7:]
    assert parse(TEXT, prompt=whole, truncate_prompt_tokens=7, truncation_side="right").prompt_token_ids == whole[:7]
    assert parse(TEXT, prompt=whole, truncate_prompt_tokens=-1, max_tokens=6).prompt_token_ids == whole[-room:]
    several = parse(TEXT, prompt=[whole, [5, 6]], truncate_prompt_tokens=3)
    assert several.prompts == [whole[-3:], [5, 6]]
    chat = parse(CHAT).prompt_token_ids
    assert parse(CHAT, truncate_prompt_tokens=4).prompt_token_ids == chat[-4:]
    with pytest.raises(RequestError, match="context length"):
        parse(TEXT, prompt=whole, truncate_prompt_tokens=-1, max_tokens=MODEL.max_model_len)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_may_be_as_long_as_leaves_room_for_the_output(side: str) -> None:
    """Which is what is asked for, or one token; and no longer than prompts may be at all."""
    whole = list(range(5, 405))
    limited, wide = (replace(MODEL, max_prompt_tokens=most) for most in (20, 300))
    for model, fields, room in (
        (MODEL, {}, 255),
        (MODEL, {"max_tokens": 6}, 250),
        (MODEL, {"max_tokens": 255}, 1),
        (MODEL, {"max_tokens": 0, "echo": True}, 255),
        (limited, {}, 20),
        (limited, {"max_tokens": 250}, 6),
        (wide, {}, 255),
    ):
        options: dict[str, Any] = {"prompt": whole, "truncation_side": side} | fields
        expected = whole[:room] if side == "right" else whole[-room:]
        for asked in (-1, room):
            assert parse(TEXT, model, truncate_prompt_tokens=asked, **options).prompt_token_ids == expected
        said = f"truncate_prompt_tokens is {room + 1}; a prompt may have 1 to {room} tokens"
        with pytest.raises(RequestError, match=said):
            parse(TEXT, model, truncate_prompt_tokens=room + 1, **options)


@pytest.mark.parametrize("max_tokens", [256, 300])
def test_where_the_output_fills_the_context_that_is_what_is_wrong(max_tokens: int) -> None:
    with pytest.raises(RequestError, match="maximum context length is 256 tokens") as refused:
        parse(TEXT, truncate_prompt_tokens=-1, max_tokens=max_tokens)
    assert refused.value.param == "max_tokens"


def test_a_chats_prompt_leaves_room_for_the_newer_of_its_two_limits() -> None:
    long = [{"role": "user", "content": "word " * 300}]
    for fields, room in (({"max_completion_tokens": 100, "max_tokens": 5}, 156), ({"max_tokens": 5}, 251), ({}, 255)):
        found = parse(CHAT, messages=long, truncate_prompt_tokens=-1, **fields)
        assert len(found.prompt_token_ids) == room


def rendered(template: str, **fields: Any) -> str:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")), template, {})
    body = msgspec.json.encode({"model": "m", "messages": [USER, BEGUN]} | fields)
    return tokenizer.decode(parse_completion(CHAT, body, tokenizer, ServedModel("m", 512)).prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "begun"),
    [
        ({}, True),
        ({"add_generation_prompt": True}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_message": True}, False),
        ({"continue_final_message": True, "add_generation_prompt": False}, False),
        ({"continue_final_message": False}, True),
    ],
)
def test_a_turn_is_begun_unless_the_last_one_is_gone_on_with(fields: dict[str, Any], begun: bool) -> None:
    found = rendered("{{ add_generation_prompt }}: {{ messages[-1].content }}{{ 'end' }}", **fields)
    assert found == f"{begun}: {BEGUN['content']}" + ("" if fields.get("continue_final_message") else "end")


def test_a_template_reads_what_it_was_given() -> None:
    template = "{{ documents | tojson if documents else 0 }} {{ reasoning_effort }} {{ enable_thinking }}"
    assert rendered(template).strip() == "0"
    assert json.loads(rendered(template, documents=DOCUMENTS)) == DOCUMENTS
    assert rendered(template, reasoning_effort="low").split() == ["0", "low", "True"]
    assert rendered(template, reasoning_effort="none").split() == ["0", "none", "False"]
    mixed = rendered(template, reasoning_effort="low", chat_template_kwargs={"enable_thinking": 5})
    assert mixed.split() == ["0", "low", "5"]


def test_what_a_template_refuses_is_told_with_the_messages() -> None:
    tokenizer = with_bos("{{ raise_exception('no such turn') }}")
    body = msgspec.json.encode({"model": "m", "messages": [USER]})
    with pytest.raises(RequestError, match="no such turn") as refused:
        parse_completion(CHAT, body, tokenizer, ServedModel("m", 512))
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("endpoint", "asked", "is_added"),
    [(TEXT, None, True), (TEXT, True, True), (TEXT, False, False), (CHAT, None, False), (CHAT, True, True)],
)
def test_a_text_has_special_tokens_and_a_chat_those_of_its_template(
    endpoint: str, asked: bool | None, is_added: bool
) -> None:
    tokenizer = with_bos("{% for message in messages %}{{ message.content }}{% endfor %}")
    prompt = {"prompt": "he"} if endpoint == TEXT else {"messages": [{"role": "user", "content": "he"}]}
    body = msgspec.json.encode({"model": "m", "add_special_tokens": asked} | prompt)
    found = parse_completion(endpoint, body, tokenizer, ServedModel("m", 512))
    assert found.prompt_token_ids == tokenizer.encode("he", is_added)


def test_special_tokens_are_added_where_that_is_asked_for() -> None:
    for add_special_tokens in (True, False):
        expected = TOKENIZER.encode("Hello", add_special_tokens)
        assert parse(TEXT, add_special_tokens=add_special_tokens).prompt_token_ids == expected
        assert (
            parse(CHAT, add_special_tokens=add_special_tokens).prompt_token_ids[-3:]
            == parse(CHAT).prompt_token_ids[-3:]
        )
