"""The event parser on streams cut at every byte."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.sse import NULL, Choice, Delta, EventParser

STREAM = (
    b": ping\r\n\r\n"
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\r\n\r\n'
    b'data:{"choices":[{"index":0,"delta":{"content":"\xc3\xa9"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"text":" b","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    chunks = [chunk for i in range(len(edges) - 1) for chunk in parser.feed(STREAM[edges[i] : edges[i + 1]])]
    told = [any(choice.tells_token for choice in chunk.choices) for chunk in chunks]
    assert told == [False, True, True, True, True, False, False], "the first has a role, the last two no text"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2
    assert parser.done


@pytest.mark.parametrize(
    ("choice", "tells"),
    [
        (Choice(text="a"), True),
        (Choice(text="a", finish_reason="stop"), True),
        (Choice(delta=Delta(content="a")), True),
        (Choice(delta=Delta(role="assistant", content="a")), True),
        (Choice(delta=Delta(reasoning="a")), True),
        (Choice(delta=Delta(reasoning_content="a")), True),
        (Choice(text=""), True),
        (Choice(delta=Delta(content="")), True),
        (Choice(delta=Delta(reasoning="")), True),
        (Choice(text="", finish_reason="stop"), False),
        (Choice(delta=Delta(content=""), finish_reason="stop"), False),
        (Choice(delta=Delta(role="assistant", content="")), False),
        (Choice(delta=Delta(role="assistant", reasoning="")), False),
        (Choice(delta=Delta()), False),  # as of a call of a tool
        (Choice(delta=Delta(reasoning_content="")), False),
        (Choice(), False),
    ],
)
def test_a_choice_tells_a_token_with_its_text_or_while_that_has_to_wait(choice: Choice, tells: bool) -> None:
    assert choice.tells_token is tells


def test_a_stream_is_done_with_its_last_event_and_not_before() -> None:
    parser = EventParser()
    assert list(parser.feed(b": ping\ndata: {}\n\n: pong\nevent: x\ndata: {}\nid: 5\n")) != [] and not parser.done
    assert list(parser.feed(b"data: [DO")) == [] and not parser.done
    assert list(parser.feed(b"NE]")) == [] and not parser.done, "a line ends with its newline"
    assert list(parser.feed(b"\n\n")) == [] and parser.done


def test_an_error_is_kept_as_it_came() -> None:
    stream = b'data: {"error": {"message": "gone"}}\ndata: {"error": "gone"}\ndata: {"error": null}\ndata: {}\n'
    errors = [chunk.error for chunk in EventParser().feed(stream)]
    assert [bytes(error) for error in errors[:2]] == [b'{"message": "gone"}', b'"gone"'] and errors[2:] == [NULL, NULL]


def test_an_event_that_is_no_chunk_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        list(EventParser().feed(b"data: {oops\n"))
