"""The tokens that clients see of an output: each with the text that its own begins in, and what they are called."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.openai.errors import RequestError
from shared.openai.shown_text import LogprobsShape, ShownText, ShownToken, asked_of_chat, shown_output, token_name
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from tests.shared.text.test_tokenizer import BROKEN_BYTE_IDS, BYTE_FALLBACK, BYTE_LEVEL, MIXED_TEXT

EOS = min(BYTE_LEVEL.eos_token_ids)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
ASKED = SamplingParams(100, logprobs=1)


def logprobs_of(token_ids: list[int]) -> list[TokenLogprobs]:
    """Those of each place, told apart."""
    return [TokenLogprobs(-float(place), [token_id], [-0.5]) for place, token_id in enumerate(token_ids)]


def all_tokens(token_ids: list[int]) -> list[ShownToken]:
    """Each where the text that is known before it ends."""
    plain, offset, found = BYTE_LEVEL.detokenizer(), 0, list[ShownToken]()
    for token_id, logprobs in zip(token_ids, logprobs_of(token_ids), strict=True):
        if token_id not in plain.hidden_ids:
            found.append(ShownToken(token_id, logprobs, offset, is_first=not found))
        offset += len(plain.push([token_id]))
    return found


@given(MIXED_TEXT, CUTS, st.sampled_from([(), ("ab", "é")]))
def test_a_token_comes_with_the_text_that_it_begins(text: str, cuts: list[int], stop: tuple[str, ...]) -> None:
    """However its steps are cut: no earlier and no later; at the end what is left of them, up to a stop string."""
    token_ids = BYTE_LEVEL.encode(text)
    sampling = SamplingParams(100, logprobs=1, stop=stop)
    shown, expected, logprobs = ShownText(BYTE_LEVEL, sampling), all_tokens(token_ids), logprobs_of(token_ids)
    whole, tokens, start, turn = "", list[ShownToken](), 0, 0
    while start < len(token_ids) and not shown.stopped:
        end = start + cuts[turn % len(cuts)]
        piece, found = shown.step(token_ids[start:end], logprobs[start:end], None)
        whole, tokens, start, turn = whole + piece, tokens + found, end, turn + 1
        assert tokens == [each for each in expected if each.offset < len(whole)]
    rest, last = shown.step([], [], FinishReason.STOP if shown.stopped else FinishReason.LENGTH)
    text_at_once = BYTE_LEVEL.decode(token_ids)
    ends = [text_at_once.index(each) for each in stop if each in text_at_once]
    assert bool(ends) is shown.stopped
    if not ends:
        assert (whole + rest, tokens + last) == (text_at_once, expected)
    else:
        assert text_at_once.startswith(whole + rest) and len(whole + rest) in ends
        assert tokens + last == [each for each in expected if each.offset < len(whole + rest)]


@pytest.mark.parametrize(
    ("sampling", "reason", "is_shown"),
    [
        ({}, FinishReason.STOP, False),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, FinishReason.STOP, False),
        ({"includes_stop": True, "shows_special": True}, FinishReason.STOP, True),
        ({"shows_special": True}, FinishReason.STOP, False),
        ({"ignore_eos": True, "shows_special": True}, FinishReason.LENGTH, True),
        ({"shows_special": True}, FinishReason.LENGTH, True),
        ({"ignore_eos": True, "shows_special": True}, FinishReason.STOP, True),
        ({}, FinishReason.LENGTH, False),
    ],
)
def test_the_token_that_ends_an_output_is_left_out_unless_it_is_to_be_shown(
    sampling: dict[str, object], reason: FinishReason, is_shown: bool
) -> None:
    """And special tokens, which have no text, unless they are shown."""
    asked = msgspec.structs.replace(ASKED, **sampling)
    token_ids = [*BYTE_LEVEL.encode("he"), EOS]
    output = ChoiceOutput(token_ids, reason, logprobs_of(token_ids))
    text, tokens = shown_output(BYTE_LEVEL, output, asked)
    name = BYTE_LEVEL.token_bytes(EOS).decode() if is_shown else ""
    assert text == f"he{name}" and tokens is not None
    assert [each.token_id for each in tokens] == (token_ids if is_shown else token_ids[:-1])
    without = shown_output(BYTE_LEVEL, output, msgspec.structs.replace(asked, logprobs=None))
    assert without == (text, None)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_behind_an_echo_each_token_comes_whatever_text_it_has(cut: int) -> None:
    """Harnesses ask for one token more than they score, and leave the last one out."""
    special = next(iter(BYTE_LEVEL.detokenizer().hidden_ids - {EOS}))
    token_ids = [*BYTE_LEVEL.encode("ab"), special, *BYTE_LEVEL.encode("c"), EOS]
    logprobs, sampling = logprobs_of(token_ids), SamplingParams(100, logprobs=1, echo=True)
    shown, whole, tokens = ShownText(BYTE_LEVEL, sampling), "", list[ShownToken]()
    for start in range(0, len(token_ids), cut):
        reason = FinishReason.STOP if start + cut >= len(token_ids) else None
        piece, found = shown.step(token_ids[start : start + cut], logprobs[start : start + cut], reason)
        whole, tokens = whole + piece, tokens + found
    assert whole == "abc" and [each.token_id for each in tokens] == token_ids
    assert [each.logprobs for each in tokens] == logprobs and tokens[-1].offset == 3
    assert shown_output(BYTE_LEVEL, ChoiceOutput(token_ids, FinishReason.STOP, logprobs), sampling) == (whole, tokens)


def test_a_character_that_never_comes_is_shown_at_the_end() -> None:
    token_ids = [*BYTE_LEVEL.encode("a"), *BYTE_LEVEL.encode("😀")[:1]]
    shown = ShownText(BYTE_LEVEL, ASKED)
    assert shown.push(token_ids, logprobs_of(token_ids)) == ("a", all_tokens(token_ids)[:1])
    assert shown.finish() == ("\ufffd", all_tokens(token_ids)[1:])
    assert shown.finish() == ("", [])


def test_a_token_without_text_comes_at_the_end() -> None:
    """As one that no vocabulary has, where a model has more rows than tokens."""
    token_ids = [*BYTE_LEVEL.encode("a"), BYTE_LEVEL.vocab_size + 5]
    _, tokens = shown_output(BYTE_LEVEL, ChoiceOutput(token_ids, FinishReason.LENGTH, logprobs_of(token_ids)), ASKED)
    assert tokens == all_tokens(token_ids) and len(tokens) == 2


def test_of_a_chat_top_logprobs_are_asked_beside_logprobs() -> None:
    assert [asked_of_chat(*each) for each in ((None, None), (False, 0), (True, None), (True, 3))] == [None, None, 0, 3]
    for logprobs in (None, False):
        with pytest.raises(RequestError, match="only allowed when logprobs is true"):
            asked_of_chat(logprobs, 2)


@given(st.lists(st.one_of(st.sampled_from(BROKEN_BYTE_IDS), st.integers(0, BYTE_LEVEL.vocab_size - 1)), max_size=8))
def test_shapes_name_tokens_by_their_text_or_their_bytes(token_ids: list[int]) -> None:
    tokens = [
        ShownToken(token_id, TokenLogprobs(-1.0, [token_id, 5], [-1.0, -2.0]), 3 * place)
        for place, token_id in enumerate(token_ids)
    ]
    of_text = LogprobsShape(BYTE_LEVEL, is_chat=False, offset=7).body(tokens)
    names = [token_name(BYTE_LEVEL, token_id) for token_id in token_ids]
    assert of_text == {
        "tokens": names,
        "token_logprobs": [-1.0] * len(tokens),
        "top_logprobs": [{token_name(BYTE_LEVEL, 5): -2.0} | {name: -1.0} for name in names],
        "text_offset": [7 + 3 * place for place in range(len(tokens))],
    }
    of_chat = LogprobsShape(BYTE_LEVEL, is_chat=True).body(tokens)
    assert of_chat is not None and of_chat["refusal"] is None and len(of_chat["content"]) == len(tokens)
    for token_id, entry in zip(token_ids, of_chat["content"], strict=True):
        assert bytes(entry["bytes"]) == BYTE_LEVEL.token_bytes(token_id)
        first, second = entry.pop("top_logprobs")
        assert first == entry and entry["logprob"] == -1.0
        assert bytes(second["bytes"]) == BYTE_LEVEL.token_bytes(5) and second["logprob"] == -2.0
    for shape in (LogprobsShape(BYTE_LEVEL, True), LogprobsShape(BYTE_LEVEL, False)):
        assert shape.body(None) is None


def test_a_token_that_comes_again_is_named_by_the_same_bytes() -> None:
    """A whole answer can have millions of them."""
    tokens = [ShownToken(5, TokenLogprobs(-1.0, [5, 6], [-1.0, -2.0]), place) for place in range(2)]
    body = LogprobsShape(BYTE_LEVEL, is_chat=True).body(tokens)
    assert body is not None
    first, second = body["content"]
    assert first["bytes"] is second["bytes"] is second["top_logprobs"][0]["bytes"] is not None


def test_a_token_that_is_none_of_the_most_probable_ones_is_named_too() -> None:
    token_id, other = (BYTE_LEVEL.encode(text)[0] for text in ("a", "b"))
    token = ShownToken(token_id, TokenLogprobs(-3.0, [other], [-1.0]), 0)
    body = LogprobsShape(BYTE_LEVEL, is_chat=False).body([token])
    assert body is not None and body["top_logprobs"] == [{"b": -1.0, "a": -3.0}]


@pytest.mark.parametrize("follows", [(), (5,)])
def test_the_bytes_of_all_tokens_are_those_of_the_text_without_the_blank_before_it(follows: tuple[int, ...]) -> None:
    """SentencePiece's first token has a blank, which is a part of a text that goes on with another one."""
    token_ids = BYTE_FALLBACK.encode("hello é 漢")
    output = ChoiceOutput(token_ids, FinishReason.LENGTH, [TokenLogprobs(-1.0, [each], [-1.0]) for each in token_ids])
    text, tokens = shown_output(BYTE_FALLBACK, output, SamplingParams(100, logprobs=1, follows=follows))
    body = LogprobsShape(BYTE_FALLBACK, is_chat=True).body(tokens)
    assert body is not None and text == " hello é 漢"[not follows :]
    for entries in (body["content"], [entry["top_logprobs"][0] for entry in body["content"]]):
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text


def test_a_part_of_a_character_is_called_by_its_bytes() -> None:
    token_id = BYTE_LEVEL.encode("😀")[0]
    data = BYTE_LEVEL.token_bytes(token_id)
    escaped = "".join(f"\\x{byte:02x}" for byte in data)
    assert token_name(BYTE_LEVEL, token_id) == f"bytes:{escaped}" and data and "😀".encode().startswith(data)
    assert token_name(BYTE_LEVEL, BYTE_LEVEL.encode("a")[0]) == "a"
    body = LogprobsShape(BYTE_LEVEL, is_chat=True).body([ShownToken(token_id, TokenLogprobs(-1.0, [], []), 0)])
    assert body is not None and body["content"][0]["token"] == escaped
