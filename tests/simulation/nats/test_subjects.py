"""Patterns against a naive reading of NATS's rules, and the index of listeners against a search through all."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.nats.subjects import Listeners, matches, overlap

tokens = st.sampled_from(("a", "b", "c"))
literals = st.lists(tokens, min_size=1, max_size=4).map(".".join)
wild = st.lists(st.one_of(tokens, st.just("*")), min_size=1, max_size=4)
patterns = st.builds(lambda parts, has_rest: ".".join([*parts, ">"] if has_rest else parts), wild, st.booleans())


@dataclass(eq=False)
class Listener:
    subject: str
    queue: str


def naive(pattern: list[str], subject: list[str]) -> bool:
    if pattern == [">"]:
        return bool(subject)
    if not pattern or not subject:
        return pattern == subject
    return pattern[0] in ("*", subject[0]) and naive(pattern[1:], subject[1:])


@given(pattern=patterns, subject=literals)
def test_a_pattern_matches_as_its_rules_say(pattern: str, subject: str) -> None:
    assert matches(pattern, subject) == naive(pattern.split("."), subject.split("."))


@given(one=patterns, other=patterns, subject=literals)
def test_patterns_that_match_the_same_overlap(one: str, other: str, subject: str) -> None:
    assert overlap(one, other) == overlap(other, one)
    if matches(one, subject) and matches(other, subject):
        assert overlap(one, other)


@given(
    listeners=st.lists(st.builds(Listener, patterns | literals, st.sampled_from(("", "q", "r"))), max_size=12),
    gone=st.sets(st.integers(0, 11)),
    asked=st.lists(literals, min_size=1, max_size=5),
)
def test_listeners_are_those_that_match(listeners: list[Listener], gone: set[int], asked: list[str]) -> None:
    index: Listeners[Listener] = Listeners()
    for listener in listeners:
        index.add(listener)
    _ = [index.of(subject) for subject in asked]  # remembered, and wrong once some are gone
    for number, listener in enumerate(listeners):
        if number in gone:
            index.remove(listener)
    left = [listener for number, listener in enumerate(listeners) if number not in gone]
    for subject in asked:
        alone, groups = index.of(subject)
        found = [*alone, *(listener for group in groups.values() for listener in group)]
        assert sorted(map(id, found)) == sorted(id(listener) for listener in left if matches(listener.subject, subject))
        assert all(listener.queue == queue for queue, group in groups.items() for listener in group)
        assert (subject in index) == bool(found)
