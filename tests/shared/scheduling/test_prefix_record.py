"""The record of sent prefixes against a list that is searched anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.placement.prefix_record import BLOCK_TOKENS, PrefixRecord, Prompt


def make_prompt(letters: str, rest: int = 0) -> Prompt:
    """A block for each letter, and ``rest`` tokens that fill none."""
    return Prompt.of([ord(letter) for letter in letters for _ in range(BLOCK_TOKENS)] + [0] * rest)


class NaiveRecord:
    """Beginnings as strings, least recently sent first."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.beginnings: list[str] = []

    def add(self, letters: str) -> None:
        for length in range(min(len(letters), self.max_blocks), 0, -1):
            if letters[:length] in self.beginnings:
                self.beginnings.remove(letters[:length])
            self.beginnings.append(letters[:length])
        del self.beginnings[: max(0, len(self.beginnings) - self.max_blocks)]

    def num_known(self, letters: str) -> int:
        return sum(letters[:length] in self.beginnings for length in range(1, len(letters) + 1))


@given(st.integers(0, 12), st.lists(st.text("ab", max_size=6), max_size=30))
def test_what_was_sent_last_is_known_by_its_beginning(max_blocks: int, sent: list[str]) -> None:
    record, naive = PrefixRecord(max_blocks), NaiveRecord(max_blocks)
    for letters in sent:
        prompt = make_prompt(letters, rest=1)
        assert record.num_cached_tokens(prompt) == naive.num_known(letters) * BLOCK_TOKENS
        record.add(prompt)
        naive.add(letters)
        assert len(record) == len(naive.beginnings) <= max_blocks


def test_the_last_token_is_computed_in_any_case() -> None:
    record = PrefixRecord(8)
    record.add(make_prompt("ab"))
    assert record.num_cached_tokens(make_prompt("ab")) == 2 * BLOCK_TOKENS - 1
    assert record.num_cached_tokens(make_prompt("ab", rest=5)) == 2 * BLOCK_TOKENS
    assert record.num_cached_tokens(Prompt.of([])) == 0


def test_a_block_is_known_only_behind_what_it_followed() -> None:
    record = PrefixRecord(8)
    record.add(make_prompt("ab"))
    assert record.num_cached_tokens(make_prompt("b", rest=1)) == 0
    assert record.num_cached_tokens(make_prompt("ba", rest=1)) == 0
    assert make_prompt("ab").blocks == make_prompt("abc", rest=7).blocks[:2]
