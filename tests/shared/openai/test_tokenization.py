"""/tokenize and /detokenize without HTTP."""

from typing import Any

import msgspec
import pytest

from shared.openai.errors import RequestError
from shared.openai.tokenization import TokenizedText, detokenized, tokenized
from tests.shared.openai.completions.test_requests import MESSAGES, MODEL, TOKENIZER


def tokens_of(**fields: Any) -> TokenizedText:
    return tokenized(msgspec.json.encode(fields), TOKENIZER, MODEL)


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


@pytest.mark.parametrize(("tokens", "param"), [([49152], "tokens[0]"), ([-1], "tokens"), ("a", "tokens")])
def test_tokens_beyond_the_vocabulary_have_no_text(tokens: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        text_of(tokens=tokens)
    assert (raised.value.param or "").startswith(param)
