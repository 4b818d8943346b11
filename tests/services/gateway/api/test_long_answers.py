"""What is written in a thread: of a long answer, or a long echo, streams would wait for a second and more."""

import threading
from typing import Any

import msgspec
import pytest

from services.gateway.api.intake import INLINE_VALUES, writer_of, written
from services.gateway.live.choices import Choices
from services.gateway.live.generation import NUMBER_BYTES, OnlineGeneration, Sender
from shared.openai.completions.answers import AnswerHead
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.requests import TEXT
from shared.protocol.sampling import SamplingParams
from tests.services.gateway.live.test_tracker import REQUEST, Front, Peer, front, peer

__all__ = ["front", "peer"]

NOBODY: Any = None


def choices_of(num_tokens: int, n: int = 1, num_bytes: int = 0, **sampling: Any) -> Choices:
    request = msgspec.structs.replace(REQUEST, sampling=SamplingParams(max_tokens=8, seed=1, **sampling))
    generations = [OnlineGeneration(f"r{number}", request, Sender(""), 0.0, 0.0) for number in range(n)]
    for each in generations:
        each.output_token_ids = [7] * num_tokens
        each.embedding = bytes(num_bytes)
    return Choices(NOBODY, generations, n)


@pytest.mark.parametrize(
    ("choices", "is_long"),
    [
        (choices_of(INLINE_VALUES), False),
        (choices_of(INLINE_VALUES + 1), True),
        (choices_of(INLINE_VALUES // 4, n=5), True),
        (choices_of(INLINE_VALUES // 4, logprobs=2), False),
        (choices_of(INLINE_VALUES // 4, logprobs=3), True),
        (choices_of(INLINE_VALUES, echo=True), True),
        (choices_of(0, n=8, num_bytes=INLINE_VALUES // 8 * NUMBER_BYTES), False),
        (choices_of(0, n=9, num_bytes=INLINE_VALUES // 8 * NUMBER_BYTES), True),
    ],
)
async def test_a_long_answer_is_written_beside_the_streams(choices: Choices, is_long: bool) -> None:
    assert (await written(choices, threading.get_ident) != threading.get_ident()) is is_long


@pytest.mark.parametrize(("num_tokens", "is_long"), [(INLINE_VALUES, False), (INLINE_VALUES + 1, True)])
async def test_a_stream_with_a_long_echo_begins_beside_the_others(num_tokens: int, is_long: bool) -> None:
    threads: list[int] = []

    def make(choices: Choices) -> ChunkWriter:
        threads.append(threading.get_ident())
        return ChunkWriter(AnswerHead(TEXT, "r0", 1, "m"), include_usage=False)

    choices = choices_of(0, echo=True)
    first = choices.first
    first.request = msgspec.structs.replace(first.request, prompt_token_ids=[7] * num_tokens)
    assert isinstance(await writer_of(choices, make), ChunkWriter)
    assert (threads != [threading.get_ident()]) is is_long


async def test_choices_that_cannot_be_shown_are_stopped(front: Front, peer: Peer) -> None:
    def fail(choices: Choices) -> ChunkWriter:
        raise ZeroDivisionError

    generation = await front.submit()
    sent = await peer.next_request()
    with pytest.raises(ZeroDivisionError):
        await writer_of(Choices(front.tracker, [generation]), fail)
    assert await peer.next_abort() == [sent.request_id] and front.tracker.num_live == 0
