"""Prompts as answers show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from shared.openai.shown_prompt import Echo
from shared.text.tokenizer import Tokenizer
from tests.shared.text.test_tokenizer import BYTE_FALLBACK, BYTE_LEVEL, MIXED_TEXT, byte_fallback_backend


def with_bos() -> Tokenizer:
    """As Llama's: SentencePiece, and a token before every text."""
    backend = byte_fallback_backend()
    backend.add_special_tokens(["<s>"])
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    return Tokenizer(backend, None, {})


WITH_BOS = with_bos()
# This SentencePiece reads its own sign for a blank as one, and a text that begins with a blank as without it.
TEXTS = MIXED_TEXT.filter(lambda text: "▁" not in text and not text.startswith(" "))


@given(TEXTS, st.sampled_from([WITH_BOS, BYTE_FALLBACK, BYTE_LEVEL]))
def test_an_echo_is_the_text_that_was_sent(text: str, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(text)
    echo = Echo.of(tokenizer, token_ids)
    assert echo.text == text
    assert len(echo.offsets) == len(token_ids) and echo.offsets == sorted(echo.offsets)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("he a", [0, 0, 1, 2]),
        ("a he", [0, 0, 1, 3]),
        ("<s>he", [0, 0, 3]),
        ("", [0]),
    ],
)
def test_tokens_before_the_text_begin_where_it_does(text: str, offsets: list[int]) -> None:
    echo = Echo.of(WITH_BOS, WITH_BOS.encode(text))
    assert (echo.text, echo.offsets) == (text, offsets)


def test_tokens_without_any_before_them_are_shown_all() -> None:
    token_ids = WITH_BOS.encode("he", add_special_tokens=False)
    assert Echo.of(WITH_BOS, [*token_ids, *WITH_BOS.encode("")]).text == "he<s>"
