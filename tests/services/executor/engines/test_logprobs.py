"""Log probabilities from the logits to the answer: what they are, and that they come with the text of their token."""

import json
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import LEAST, gather_logprobs, read_logprobs
from shared.openai.completions.answers import AnswerHead, Choice, CompletionUsage, completion_body
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.requests import CHAT, TEXT
from shared.openai.shown_text import LogprobsShape, ShownText, ShownToken, shown_output
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.text.tokenizer import Tokenizer
from tests.shared.text.test_tokenizer import BYTE_FALLBACK, BYTE_LEVEL, MIXED_TEXT

USAGE = CompletionUsage.of(prompt_tokens=5, completion_tokens=3)


def logprobs_of(token_ids: list[int]) -> list[TokenLogprobs]:
    """Made up, and different for each place."""
    return [TokenLogprobs(-0.5 - place, [token, 5], [-0.25, -3.0]) for place, token in enumerate(token_ids)]


def shown_in_pieces(
    tokenizer: Tokenizer, token_ids: list[int], cuts: list[int], stop: tuple[str, ...] = ()
) -> list[tuple[str, list[ShownToken]]]:
    """Pushed in pieces whose lengths are ``cuts``, over and over."""
    shown = ShownText(tokenizer, SamplingParams(1, stop=stop, logprobs=2))
    logprobs = logprobs_of(token_ids)
    pieces, start, turn = [], 0, 0
    while start < len(token_ids):
        end = start + cuts[turn % len(cuts)]
        pieces.append(shown.push(token_ids[start:end], logprobs[start:end]))
        start, turn = end, turn + 1
    return [*pieces, shown.finish()]


def test_they_are_the_models_own_whatever_the_sampling_does() -> None:
    logits = torch.randn(6, 400) * 3
    logits[2, 9] = -torch.inf
    asked = [0, None, 3, 20, None, 1]
    rows = [SampleRow(SamplingParams(1, 0.2, top_k=2, logprobs=num_top), 0) for num_top in asked]
    tokens = [7, 8, 9, 10, 11, 12]
    gathered = gather_logprobs(logits, rows, tokens)
    assert gathered is not None
    expected = logits.log_softmax(-1)
    for i, num_top in enumerate(asked):
        if num_top is None:
            continue
        found = read_logprobs(gathered[0][i].tolist(), gathered[1][i].tolist(), num_top)
        assert found.logprob == pytest.approx(max(float(expected[i, tokens[i]]), LEAST), abs=1e-5)
        assert found.top_token_ids == expected[i].topk(num_top).indices.tolist()
        assert found.top_logprobs == pytest.approx(expected[i].topk(num_top).values.tolist(), abs=1e-5)
    assert gather_logprobs(logits, [SampleRow(SamplingParams(1), 0)] * 6, tokens) is None


@given(MIXED_TEXT, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_the_bytes_of_the_tokens_are_those_of_the_text(text: str, cuts: list[int]) -> None:
    token_ids = BYTE_LEVEL.encode(text)
    so_far, data = "", b""
    tokens = []
    for piece, new in shown_in_pieces(BYTE_LEVEL, token_ids, cuts):
        so_far += piece
        tokens += new
        data += b"".join(BYTE_LEVEL.token_bytes(token.token_id) for token in new)
        assert data == so_far.encode(), "neither before its text nor after it"
    assert [token.token_id for token in tokens] == token_ids
    assert [token.logprobs for token in tokens] == logprobs_of(token_ids)
    for token in tokens:
        begins = BYTE_LEVEL.token_bytes(token.token_id).decode(errors="ignore")
        assert so_far.startswith(begins, token.offset) or "\ufffd" in BYTE_LEVEL.decode([token.token_id])


def test_bytes_that_have_a_token_each_are_those_bytes() -> None:
    token_ids = BYTE_FALLBACK.encode("hello é漢")
    assert b"".join(map(BYTE_FALLBACK.token_bytes, token_ids)) == " hello é漢".encode()
    assert BYTE_FALLBACK.token_bytes(10**9) == b""


def test_tokens_of_a_split_character_come_with_it_at_its_place() -> None:
    token_ids = BYTE_LEVEL.encode("a😀b")
    pieces = shown_in_pieces(BYTE_LEVEL, token_ids, [1])
    assert [piece for piece, _ in pieces] == ["a", *[""] * (len(token_ids) - 3), "😀", "b", ""]
    (_, together) = pieces[len(token_ids) - 2]
    assert [token.token_id for token in together] == token_ids[1:-1]
    assert {token.offset for token in together} == {1}
    parts = LogprobsShape(BYTE_LEVEL, is_chat=True).body(together)["content"]  # type: ignore[index]
    assert bytes(byte for part in parts for byte in part["bytes"]).decode() == "😀"
    assert "\\x" in parts[0]["token"]


@given(
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4), stop=st.sampled_from([" four", "e four", "ree", "zzz"])
)
def test_what_a_stop_string_cuts_off_has_no_logprobs(cuts: list[int], stop: str) -> None:
    text = "one two three four five"
    pieces = shown_in_pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text), cuts, (stop,))
    shown = "".join(piece for piece, _ in pieces)
    assert shown == text.partition(stop)[0]
    tokens = [token for _, new in pieces for token in new]
    joined = b"".join(BYTE_LEVEL.token_bytes(token.token_id) for token in tokens).decode()
    assert joined.startswith(shown) and text.startswith(joined)
    assert all(token.offset < len(shown) for token in tokens)
    so_far = 0
    for piece, new in pieces:
        so_far += len(piece)
        assert all(token.offset < so_far for token in new), "held back with the text"


def test_the_end_token_and_the_stop_token_are_left_out() -> None:
    (eos,) = BYTE_LEVEL.encode("<|im_end|>")
    token_ids = BYTE_LEVEL.encode("one two")
    for last, stop_token_ids in ((eos, ()), (token_ids[0], (token_ids[0],))):
        sampling = SamplingParams(9, stop_token_ids=stop_token_ids, logprobs=0)
        ended = [*token_ids, last]
        text, tokens = shown_output(BYTE_LEVEL, ChoiceOutput(ended, FinishReason.STOP, logprobs_of(ended)), sampling)
        assert text == "one two"
        assert tokens is not None and [token.token_id for token in tokens] == token_ids
    assert shown_output(BYTE_LEVEL, ChoiceOutput(token_ids, FinishReason.STOP), SamplingParams(9)) == ("one two", None)


def shown(text: str) -> list[ShownToken]:
    return [token for _, new in shown_in_pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text), [3]) for token in new]


@pytest.mark.parametrize(("endpoint", "shape"), [(CHAT, ChatCompletion), (TEXT, Completion)])
def test_whole_answers_fit_the_clients_types(endpoint: str, shape: Any) -> None:
    logprobs = LogprobsShape(BYTE_LEVEL, endpoint == CHAT).body(shown("Hi 😀!"))
    choice = Choice("Hi 😀!", FinishReason.STOP, logprobs)
    body = msgspec.to_builtins(completion_body(AnswerHead(endpoint, "r1", 17, "m"), [choice], USAGE))
    found = shape.model_validate(body, strict=True).choices[0].logprobs
    if endpoint == CHAT:
        assert b"".join(bytes(entry.bytes) for entry in found.content).decode() == "Hi 😀!"
        assert (found.content[0].token, found.content[0].logprob) == ("Hi", -0.5)
        assert [top.logprob for top in found.content[0].top_logprobs] == [-0.25, -3.0]
    else:
        assert found.tokens[0] == "Hi" and found.tokens[1].startswith("bytes:\\x20\\xf0")
        assert found.text_offset == sorted(found.text_offset) and found.text_offset[0] == 0
        assert found.top_logprobs[0]["Hi"] == found.token_logprobs[0] == -0.5


def test_chunks_fit_the_clients_types() -> None:
    chat, text = (
        ChunkWriter(AnswerHead(endpoint, "r1", 17, "m"), False, logprobs=LogprobsShape(BYTE_LEVEL, endpoint == CHAT))
        for endpoint in (CHAT, TEXT)
    )
    tokens = shown("Hi")
    chunk = ChatCompletionChunk.model_validate(json.loads(chat.text("Hi", tokens)[6:]), strict=True).choices[0]
    assert chunk.logprobs is not None and chunk.logprobs.content is not None
    assert (chunk.delta.content, chunk.logprobs.content[0].token) == ("Hi", "Hi")
    body = json.loads(text.text("Hi", tokens)[6:])["choices"][0]
    assert (body["text"], body["logprobs"]["tokens"]) == ("Hi", ["Hi"])
    assert json.loads(chat.text("Hi")[6:])["choices"][0]["logprobs"] is None
