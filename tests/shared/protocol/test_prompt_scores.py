"""Scores of prompts as they are packed."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.prompt_scores import PromptScore, pack_scores, record_bytes, unpack_scores

LOGPROBS = st.floats(-100, 0, width=32)
IDS = st.integers(0, 2**31 - 1)


def scores_of(num_top: int) -> st.SearchStrategy[list[PromptScore]]:
    tops = st.tuples(*[IDS] * num_top), st.tuples(*[LOGPROBS] * num_top)
    return st.lists(st.builds(PromptScore, LOGPROBS, IDS, *tops), max_size=5)


@given(st.integers(0, 4).flatmap(lambda num_top: st.tuples(st.just(num_top), scores_of(num_top))))
def test_scores_are_read_as_they_were_written(made: tuple[int, list[PromptScore]]) -> None:
    num_top, scores = made
    packed = pack_scores(scores)
    assert len(packed) == len(scores) * record_bytes(num_top)
    assert list(unpack_scores(packed, num_top)) == scores


def test_a_record_is_as_it_is_described() -> None:
    """Whoever reads results has nothing else to go by."""
    score = PromptScore(-0.5, 3, (7, 70_000), (-0.25, -2.0))
    record = struct.pack("<f", -0.5) + struct.pack("<i", 3) + struct.pack("<2i", 7, 70_000)
    assert pack_scores([score, score]) == 2 * (record + struct.pack("<2f", -0.25, -2.0))
