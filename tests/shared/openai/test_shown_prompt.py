"""Prompts as answers show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from shared.openai.errors import RequestError
from shared.openai.shown_prompt import MAX_SCORES, Echo, ShownPrompt, asked_of_prompt, check_scores, joined
from shared.openai.shown_text import LogprobsShape
from shared.protocol.prompt_scores import PromptScore, pack_scores
from shared.protocol.sampling import SamplingParams
from shared.text.tokenizer import Tokenizer
from tests.shared.text.test_tokenizer import BYTE_FALLBACK, BYTE_LEVEL, MIXED_TEXT, byte_fallback_backend


def with_bos(chat_template: str | None = None) -> Tokenizer:
    """As Llama's: SentencePiece, and a token before every text."""
    backend = byte_fallback_backend()
    backend.add_special_tokens(["<s>"])
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    return Tokenizer(backend, chat_template, {})


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


def test_a_character_that_is_not_whole_is_replaced() -> None:
    echo = Echo.of(BYTE_LEVEL, [*BYTE_LEVEL.encode("a"), *BYTE_LEVEL.encode("😀")[:1]])
    assert (echo.text, echo.offsets) == ("a\ufffd", [0, 1])
    assert echo.before(LogprobsShape(BYTE_LEVEL, is_chat=False)).offset == 2


PROMPT = BYTE_LEVEL.encode("a b c")
A, B, C = PROMPT
SCORES = [PromptScore(-2.5, 7, (C, A), (-0.5, -1.5)), PromptScore(-0.25, 1, (C, B), (-0.25, -3.0))]
SHOWN = ShownPrompt(PROMPT, pack_scores(SCORES))


def test_each_token_of_a_prompt_is_listed_with_the_most_probable_ones() -> None:
    """Itself first, and once."""
    sampling = SamplingParams(8, prompt_logprobs=2, lists_prompt=True)
    first, second, third = SHOWN.listed(BYTE_LEVEL, sampling) or []
    assert first is None and second is not None and third is not None
    assert second == {
        str(B): {"logprob": -2.5, "rank": 7, "decoded_token": " b"},
        str(C): {"logprob": -0.5, "rank": 1, "decoded_token": " c"},
        str(A): {"logprob": -1.5, "rank": 2, "decoded_token": "a"},
    }
    assert list(second) == [str(B), str(C), str(A)]
    assert third == {
        str(C): {"logprob": -0.25, "rank": 1, "decoded_token": " c"},
        str(B): {"logprob": -3.0, "rank": 2, "decoded_token": " b"},
    }
    assert SHOWN.listed(BYTE_LEVEL, SamplingParams(8, prompt_logprobs=2)) is None
    assert ShownPrompt(PROMPT).listed(BYTE_LEVEL, sampling) is None


@pytest.mark.parametrize("num_top", [None, 0, 1, 2])
def test_of_an_echoed_prompt_as_many_are_shown_as_of_the_output(num_top: int | None) -> None:
    """And each token itself."""
    echo = Echo.of(BYTE_LEVEL, PROMPT)
    logprobs = SHOWN.logprobs(echo, SamplingParams(8, prompt_logprobs=2, logprobs=num_top))
    tops: list[list[tuple[str, float]]] = [[(" c", -0.5), ("a", -1.5)], [(" c", -0.25), (" b", -3.0)]]
    own = [{" b": -2.5}, {" c": -0.25}]
    assert logprobs == {
        "tokens": ["a", " b", " c"],
        "token_logprobs": [None, -2.5, -0.25],
        "top_logprobs": [None, *(dict(top[: num_top or 0]) | each for top, each in zip(tops, own, strict=True))],
        "text_offset": [0, 1, 3],
    }
    assert joined(logprobs, None) == logprobs
    assert joined(logprobs, logprobs) == {name: values * 2 for name, values in logprobs.items()}


def test_scores_of_another_prompt_are_not_shown() -> None:
    """Of fewer tokens, or of more."""
    for prompt in (PROMPT[:2], [*PROMPT, A]):
        shown, sampling = ShownPrompt(prompt, SHOWN.scores), SamplingParams(8, prompt_logprobs=2, lists_prompt=True)
        with pytest.raises(ValueError):
            shown.listed(BYTE_LEVEL, sampling)
        with pytest.raises(ValueError):
            shown.logprobs(Echo.of(BYTE_LEVEL, prompt), sampling)


def test_a_token_that_is_as_probable_as_another_keeps_its_rank() -> None:
    """It is listed behind that one where their log probabilities are the same."""
    tied = ShownPrompt([A, B], pack_scores([PromptScore(-0.5, 1, (C, B), (-0.5, -0.5))]))
    _, entry = tied.listed(BYTE_LEVEL, SamplingParams(8, prompt_logprobs=2, lists_prompt=True)) or []
    assert entry is not None and {id: each["rank"] for id, each in entry.items()} == {str(B): 1, str(C): 1}


@pytest.mark.parametrize(
    ("prompt_logprobs", "echoed", "expected"), [(None, None, None), (3, None, 3), (0, 5, 0), (None, 5, 5), (None, 0, 0)]
)
def test_scores_are_asked_for_by_themselves_or_by_an_echo(
    prompt_logprobs: int | None, echoed: int | None, expected: int | None
) -> None:
    """A prompt of many tokens has fewer of them."""
    assert asked_of_prompt(prompt_logprobs, echoed, 1000) == expected
    if expected is None:
        assert asked_of_prompt(prompt_logprobs, echoed, 10 * MAX_SCORES) is None
    else:
        most_tokens = MAX_SCORES // (1 + expected)
        assert asked_of_prompt(prompt_logprobs, echoed, most_tokens) == expected
        with pytest.raises(RequestError, match="ask for fewer") as error:
            asked_of_prompt(prompt_logprobs, echoed, most_tokens + 1)
        assert error.value.param == ("logprobs" if prompt_logprobs is None else "prompt_logprobs")


def test_scores_of_a_prompt_do_not_come_in_a_stream() -> None:
    for prompt_logprobs, stream in ((None, False), (None, True), (0, False), (2, False)):
        check_scores(prompt_logprobs, stream)
    for prompt_logprobs in (0, 2):
        with pytest.raises(RequestError, match="do not come in a stream"):
            check_scores(prompt_logprobs, True)
