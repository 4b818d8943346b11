"""Which answers are written in a thread: of a large one, streams would wait for a second and more."""

import threading
from typing import Any

import msgspec
import pytest

from services.gateway.api.intake import INLINE_VALUES, written
from services.gateway.live.choices import Choices
from services.gateway.live.generation import NUMBER_BYTES, OnlineGeneration, Sender
from shared.protocol.sampling import SamplingParams
from tests.services.gateway.live.test_tracker import REQUEST

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
