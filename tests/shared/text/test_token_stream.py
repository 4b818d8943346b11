"""Texts that go on with others, and characters whose bytes are tokens."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.text.test_tokenizer import BYTE_FALLBACK, BYTE_LEVEL, MIXED_TEXT, stream

FIRST_BYTE, FIRST_PIECE = 1, 257  # of the vocabulary of BYTE_FALLBACK
EMOJI = [FIRST_BYTE + byte for byte in "😀".encode()]
INVALID = FIRST_BYTE + 0xFF

cuts_of_streams = st.lists(st.integers(1, 20), min_size=1, max_size=4)
byte_tokens = st.one_of(
    st.sampled_from([*EMOJI, INVALID, FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9]),
    st.integers(FIRST_PIECE, BYTE_FALLBACK.vocab_size - 1),
)


def text_of_bytes(run: list[int]) -> str:
    """Its characters, and U+FFFD for each byte that is part of none."""
    data, text = bytes(token_id - FIRST_BYTE for token_id in run), ""
    while data:
        lengths = [length for length in range(1, 5) if is_character(data[:length])]
        text += data[: lengths[0]].decode() if lengths else "\ufffd"
        data = data[lengths[0] if lengths else 1 :]
    return text


def is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@given(st.lists(byte_tokens, max_size=40), cuts_of_streams)
def test_runs_of_bytes_read_the_same_however_they_are_cut(token_ids: list[int], cuts: list[int]) -> None:
    """One that fits nowhere takes no character with it, wherever a piece ends."""
    runs = [(are_bytes, list(run)) for are_bytes, run in groupby(token_ids, lambda token_id: token_id < FIRST_PIECE)]
    expected = ""
    for number, (are_bytes, run) in enumerate(runs):
        before = [EMOJI[0]] if number else []  # of which no more is seen than that the text has begun
        piece = BYTE_FALLBACK.decode(before + run)[len(before) :]
        expected += text_of_bytes(run) if are_bytes else piece
    assert "".join(stream(BYTE_FALLBACK, token_ids, cuts)) == expected


@pytest.mark.parametrize("run", [[INVALID], EMOJI[:3], [*EMOJI[:2], INVALID, EMOJI[0]]])
def test_without_a_character_a_run_of_bytes_is_what_the_library_makes_of_it(run: list[int]) -> None:
    token_ids = [*BYTE_FALLBACK.encode("a"), *run, *BYTE_FALLBACK.encode("hello")]
    for cut in (1, len(token_ids)):
        assert "".join(stream(BYTE_FALLBACK, token_ids, [cut])) == BYTE_FALLBACK.decode(token_ids)


@given(MIXED_TEXT, MIXED_TEXT, cuts_of_streams, st.booleans())
def test_a_text_that_goes_on_with_another_reads_as_its_end(
    before: str, text: str, cuts: list[int], byte_fallback: bool
) -> None:
    """Also where it takes up a character that the other has begun."""
    tokenizer = BYTE_FALLBACK if byte_fallback else BYTE_LEVEL
    first, token_ids = tokenizer.encode(f"a{before}"), tokenizer.encode(text)
    whole = tokenizer.decode(first + token_ids)
    for num_known in range(max(1, len(first) - 4), len(first) + 1):
        known, rest = first[:num_known], first[num_known:] + token_ids
        shown = "".join(stream(tokenizer, known, [1])[:-1])  # up to a character that is not whole
        assert shown + "".join(stream(tokenizer, rest, cuts, follows=known[-8:])) == whole


def test_a_text_of_its_own_begins_without_the_blank_of_its_first_word() -> None:
    token_ids = BYTE_FALLBACK.encode("hello")
    assert "".join(stream(BYTE_FALLBACK, token_ids, [1])) == "hello"
    assert "".join(stream(BYTE_FALLBACK, token_ids, [1], follows=token_ids)) == " hello"
    assert "".join(stream(BYTE_FALLBACK, token_ids, [1], (" he",), follows=token_ids)) == ""


@pytest.mark.parametrize("broken", [[INVALID] * 8, EMOJI[1:] * 2])
def test_what_is_broken_in_the_text_before_is_not_shown_again(broken: list[int]) -> None:
    assert "".join(stream(BYTE_FALLBACK, BYTE_FALLBACK.encode("hello"), [1], follows=broken)) == " hello"
    of_bytes = [token_id for token_id in range(256) if "\ufffd" in BYTE_LEVEL.decode([token_id])][:1] * 8
    assert "".join(stream(BYTE_LEVEL, BYTE_LEVEL.encode("ok"), [1], follows=of_bytes)) == "ok"
