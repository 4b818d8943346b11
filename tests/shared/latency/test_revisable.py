"""Features of a batch from which requests leave again, against features counted anew."""

from copy import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.revisable import RevisableFeatures
from shared.protocol.codec import decode, encode
from tests.shared.latency.shapes import make_shape

scheduled = st.one_of(
    st.tuples(st.just(1), st.integers(1, 12)),  # decodes, of few lengths, so that many are equal
    st.tuples(st.integers(1, 500), st.integers(0, 300)),
)


def counted(requests: list[tuple[int, int]]) -> BatchFeatures:
    """One after another, nobody ever removed."""
    features = BatchFeatures()
    for num_tokens, num_computed in requests:
        features.add_scheduled(num_tokens, num_computed)
    return features


def told(features: BatchFeatures) -> tuple[int, ...]:
    return (*features.sums, features.longest_decode)


@given(st.lists(st.one_of(scheduled, st.integers(0, 1000)), max_size=60))
def test_after_any_changes_it_is_as_if_those_who_left_had_never_been_there(
    changes: list[tuple[int, int] | int],
) -> None:
    """A change adds a request, or removes one of those that are there."""
    features, held = RevisableFeatures(), list[tuple[int, int]]()
    for change in changes:
        if isinstance(change, tuple):
            features.add_scheduled(*change)
            held.append(change)
        elif held:
            features.remove_scheduled(*held.pop(change % len(held)))
        assert told(features) == told(counted(held))
        longest = max((computed + 1 for tokens, computed in held if tokens == 1 and computed), default=0)
        assert features.longest_decode == longest


@given(st.lists(st.integers(1, 50)), st.lists(st.integers(1, 50)), st.data())
def test_many_at_once_are_as_one_after_another(first: list[int], more: list[int], data: st.DataObject) -> None:
    together, apart, plain = RevisableFeatures(), RevisableFeatures(), BatchFeatures()
    together.add_decodes(first)
    plain.add_decodes(first)
    for context_len in first:
        apart.add_decode(context_len)
    assert told(together) == told(apart) == told(plain) == told(make_shape((), first))
    for leaving in data.draw(st.lists(st.sampled_from(first), max_size=1) if first else st.just([])):
        together.remove_decode(leaving)
        apart.remove_decode(leaving)
    together.add_decodes(more)
    for context_len in more:
        apart.add_decode(context_len)
    left = together.context_lens
    assert told(together) == told(apart) == told(make_shape((), left)) and sorted(left) == sorted(apart.context_lens)


def test_a_copy_changes_alone() -> None:
    features = RevisableFeatures()
    features.add_decodes([3, 9])
    features.add_prefill(7, 2)
    other = copy(features)
    other.remove_decode(9)
    other.add_decode(4)
    assert (features.longest_decode, features.context_lens) == (9, [3, 9])
    assert (other.longest_decode, other.context_lens) == (4, [3, 4])
    assert features.sums[:2] == other.sums[:2] == (7, 1)


def test_a_decode_that_is_not_there_cannot_leave() -> None:
    features = RevisableFeatures()
    features.add_decodes([3, 9])
    with pytest.raises(AssertionError, match="no decode of 4 tokens"):
        features.remove_decode(4)


def test_features_travel_to_and_from_those_who_do_not_know_the_longest() -> None:
    features = make_shape([(100, 50)], [30, 40])
    assert decode(encode(features), BatchFeatures) == features
    before = msgspec.msgpack.encode(features.sums)
    assert decode(before, BatchFeatures) == BatchFeatures(*features.sums)
    assert tuple(decode(encode(features), list))[:5] == features.sums  # what an older reader takes
