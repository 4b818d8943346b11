"""How long answers are expected to be, as others end."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.placement.output_lengths import OUTPUT_SAMPLES, OutputLengths


def lengths_of(ended: list[int]) -> OutputLengths:
    lengths = OutputLengths()
    for num_tokens in ended:
        lengths.add(num_tokens)
    return lengths


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=OUTPUT_SAMPLES))
def test_the_mean_is_that_of_all_that_ended_while_these_are_few(ended: list[int]) -> None:
    assert lengths_of(ended).mean == pytest.approx(fmean(ended))


def test_something_is_expected_before_anything_has_ended() -> None:
    assert OutputLengths().mean > 0


def test_older_answers_fade_out() -> None:
    """As fast as in a mean of so many."""
    long_ago, many = [5000] * 10 * OUTPUT_SAMPLES, [10] * OUTPUT_SAMPLES
    assert lengths_of(long_ago).mean == pytest.approx(5000)
    assert lengths_of([*long_ago, 10]).mean == pytest.approx(fmean([5000] * (OUTPUT_SAMPLES - 1) + [10]))
    assert 10 < lengths_of(long_ago + many).mean < 5000 / 2
    assert lengths_of(long_ago + 10 * many).mean == pytest.approx(10, abs=1)
