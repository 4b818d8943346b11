"""/tokenize and /detokenize without HTTP."""

from typing import Any

import msgspec
import pytest

from shared.openai.errors import RequestError
from shared.openai.tokenization import TokenizedText, detokenized, tokenized
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import TIME, USER, WEATHER
from tests.shared.openai.completions.test_requests import MESSAGES, MODEL, TOKENIZER
from tests.shared.openai.test_shown_prompt import WITH_BOS
from tests.shared.openai.tools.test_call_grammars import parse, tokenizer_of


def tokens_of(tokenizer: Tokenizer = TOKENIZER, **fields: Any) -> TokenizedText:
    return tokenized(msgspec.json.encode(fields), tokenizer, MODEL)


def text_of(**fields: Any) -> str:
    return detokenized(msgspec.json.encode(fields), TOKENIZER, MODEL).prompt


@pytest.mark.parametrize("text", ["Hello world", "é 😀", "", "<|im_start|>user\n"])
def test_texts_come_back_as_they_were(text: str) -> None:
    found = tokens_of(prompt=text, model="tiny", return_token_strs=True)
    assert found.tokens == TOKENIZER.encode(text) and found.count == len(found.tokens)
    assert found.max_model_len == MODEL.max_model_len and found.token_strs is not None
    assert len(found.token_strs) == found.count
    assert text_of(tokens=found.tokens) == text


def test_a_conversation_is_what_a_chat_would_be() -> None:
    assert tokens_of(messages=MESSAGES).tokens == TOKENIZER.apply_chat_template(MESSAGES)
    assert tokens_of(prompt="Hello").token_strs is None
    closed = tokens_of(messages=MESSAGES, add_generation_prompt=False).tokens
    assert tokens_of(messages=MESSAGES).tokens[: len(closed)] == closed
    whole = tokens_of(messages=MESSAGES, continue_final_message=True).tokens
    assert TOKENIZER.decode(whole).endswith("Hello")


def test_what_stands_before_every_text_may_be_left_out() -> None:
    bare = WITH_BOS.encode("he", add_special_tokens=False)
    for fields, expected in (
        ({}, WITH_BOS.encode("he")),
        ({"add_special_tokens": None}, WITH_BOS.encode("he")),
        ({"add_special_tokens": True}, WITH_BOS.encode("he")),
        ({"add_special_tokens": False}, bare),
    ):
        found = tokens_of(WITH_BOS, prompt="he", return_token_strs=True, **fields)
        assert found.tokens == expected and found.token_strs == [WITH_BOS.token_of(each) for each in expected]
    assert len(WITH_BOS.encode("he")) == len(bare) + 1


def test_a_conversation_with_tools_is_what_a_chat_would_be() -> None:
    tokenizer, fields = tokenizer_of(ToolFormat.HERMES), {"tools": [WEATHER, TIME], "messages": [USER]}
    with_tools = tokens_of(tokenizer, **fields).tokens
    assert with_tools == parse(tokenizer, **fields).prompt_token_ids
    without = tokens_of(tokenizer, messages=[USER], tools=[]).tokens
    assert without == parse(tokenizer).prompt_token_ids != with_tools
    with pytest.raises(RequestError, match="takes no tools") as refused:
        tokens_of(**fields)
    assert refused.value.param == "tools"


def test_what_the_template_refuses_is_named() -> None:
    messages = [{"role": "user", "content": "  "}]
    with pytest.raises(RequestError, match="cannot be continued") as refused:
        tokens_of(messages=messages, continue_final_message=True)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "model": "other"}, "model"),
        ({"prompt": "a", "promt": "a"}, "promt"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools"),
        ({"messages": [], "add_generation_prompt": True}, "messages"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        tokens_of(**fields)
    assert raised.value.param == param


def test_the_last_token_of_the_vocabulary_has_its_text() -> None:
    last = TOKENIZER.vocab_size - 1
    assert text_of(tokens=[last], model="tiny") == TOKENIZER.decode([last], skip_special_tokens=False)
    for fields, param in (({"tokens": [1], "model": "other"}, "model"), ({"tokens": [1], "text": "a"}, "text")):
        with pytest.raises(RequestError) as refused:
            text_of(**fields)
        assert refused.value.param == param


@pytest.mark.parametrize(
    ("tokens", "param"), [([49152], "tokens[0]"), ([1, 49152], "tokens[1]"), ([-1], "tokens"), ("a", "tokens")]
)
def test_tokens_beyond_the_vocabulary_have_no_text(tokens: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        text_of(tokens=tokens)
    assert (raised.value.param or "").startswith(param)


def test_no_more_tokens_are_read_than_texts_may_have() -> None:
    assert text_of(tokens=[5] * MODEL.longest_text) == TOKENIZER.decode([5], False) * MODEL.longest_text
    with pytest.raises(RequestError, match=f"tokens has more than {MODEL.longest_text}$") as refused:
        text_of(tokens=[5] * (MODEL.longest_text + 1))
    assert (refused.value.param, refused.value.code) == ("tokens", "context_length_exceeded")
