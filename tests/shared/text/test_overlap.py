"""Where a text may have begun to be a mark, against a search."""

from hypothesis import given
from hypothesis import strategies as st

from shared.text.overlap import overlap

LETTERS = st.text("ab", max_size=8)


@given(LETTERS, LETTERS)
def test_it_is_the_longest_end_that_a_mark_begins_with(text: str, mark: str) -> None:
    """The whole mark has not begun: it is there."""
    beginnings = [mark[:length] for length in range(len(mark))]
    assert overlap(text, mark) == max((len(each) for each in beginnings if text.endswith(each)), default=0)
