"""The features of batches, however they come to be counted."""

from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures, attention_pairs
from shared.protocol.codec import decode, encode

SCHEDULED = st.lists(st.tuples(st.integers(1, 3) | st.integers(1, 500), st.sampled_from([0, 1, 7, 4000])), max_size=8)
DECODES = st.lists(st.integers(2, 5000), max_size=6)


def counted(scheduled: list[tuple[int, int]]) -> BatchFeatures:
    """By what the fields are."""
    decodes = [computed + 1 for num_tokens, computed in scheduled if num_tokens == 1 and computed > 0]
    chunks = [(num_tokens, computed) for num_tokens, computed in scheduled if num_tokens > 1 or not computed]
    pairs = sum(computed + place for num_tokens, computed in chunks for place in range(1, num_tokens + 1))
    num_tokens = sum(num_tokens for num_tokens, _ in chunks)
    return BatchFeatures(num_tokens, len(chunks), sum(decodes), len(decodes), pairs, max(decodes, default=0))


@given(SCHEDULED, SCHEDULED)
def test_what_is_scheduled_counts_the_same_one_by_one_and_at_once(
    before: list[tuple[int, int]], scheduled: list[tuple[int, int]]
) -> None:
    one_by_one, at_once = counted(before), counted(before)
    for num_tokens, num_computed in scheduled:
        one_by_one.add_scheduled(num_tokens, num_computed)
    at_once.add_all(scheduled)
    assert one_by_one == at_once == counted(before + scheduled)
    assert at_once.is_empty is not bool(before + scheduled)


@given(SCHEDULED, DECODES)
def test_decodes_count_the_same_one_by_one_and_at_once(before: list[tuple[int, int]], decodes: list[int]) -> None:
    one_by_one, at_once = counted(before), counted(before)
    for context_len in decodes:
        one_by_one.add_decode(context_len)
    at_once.add_decodes(decodes)
    assert one_by_one == at_once == counted(before + [(1, context_len - 1) for context_len in decodes])


@given(SCHEDULED, st.integers(0, 5), st.integers(2, 5000))
def test_the_decodes_of_a_batch_with_some_more(
    scheduled: list[tuple[int, int]], num_more: int, context_len: int
) -> None:
    batch = counted(scheduled)
    decodes = [each for each in scheduled if each[0] == 1 and each[1]]
    assert batch.decodes(num_more, context_len) == counted(decodes + [(1, context_len - 1)] * num_more)
    assert batch == counted(scheduled), "which stays as it is"


@given(st.integers(0, 50), st.integers(0, 50))
def test_each_token_attends_to_all_before_it_and_to_itself(num_tokens: int, num_computed: int) -> None:
    assert attention_pairs(num_tokens, num_computed) == sum(num_computed + n for n in range(1, num_tokens + 1))


def test_many_long_prompts_that_wait_can_be_told_of() -> None:
    work = BatchFeatures()
    for _ in range(100):
        work.add_prefill(2_000_000, 0)
    assert decode(encode(work), BatchFeatures) == work
