"""vLLM's fields of how a prompt is made, against what transformers makes of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.requests import CHAT, TEXT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.thinking_model import make_thinking_model
from tests.shared.openai.completions.test_requests import MODEL, TOKENIZER, parse

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


def test_special_tokens_are_added_where_that_is_asked_for() -> None:
    for add_special_tokens in (True, False):
        expected = TOKENIZER.encode("Hello", add_special_tokens)
        assert parse(TEXT, add_special_tokens=add_special_tokens).prompt_token_ids == expected
        assert (
            parse(CHAT, add_special_tokens=add_special_tokens).prompt_token_ids[-3:]
            == parse(CHAT).prompt_token_ids[-3:]
        )
