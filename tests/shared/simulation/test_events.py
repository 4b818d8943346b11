"""Virtual time against a naive model: all events sorted by their time, then by when they were planned."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.simulation.events import Events

DELAYS_S = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 3), max_size=3)), max_size=20)


@given(DELAYS_S)
def test_events_happen_by_their_time_then_as_they_were_planned(plans: list[tuple[int, list[int]]]) -> None:
    """Each of the first ones plans others, so much later."""
    events = Events()
    happened: list[tuple[float, int]] = []
    planned: list[tuple[float, int]] = []

    def plan(time_s: float, later_s: list[int]) -> None:
        planned.append((time_s, len(planned)))
        events.at(time_s, partial(happen, planned[-1], later_s))

    def happen(what: tuple[float, int], later_s: list[int]) -> None:
        assert events.now_s == events.monotonic_s() == events.unix_s() == what[0]
        happened.append(what)
        for delay_s in later_s:
            plan(events.now_s + delay_s, [])

    for time_s, later_s in plans:
        plan(float(time_s), later_s)
    while events.next_s is not None:
        assert events.next_s == min(set(planned) - set(happened))[0]
        events.run_next()
    assert happened == sorted(planned) and len(happened) == len(planned)


def test_time_goes_on_without_an_event() -> None:
    events = Events()
    assert events.next_s is None and events.now_s == 0.0
    events.advance(2.5)
    assert events.monotonic_s() == 2.5
    with pytest.raises(AssertionError, match="is over"):
        events.at(2.0, lambda: None)
    with pytest.raises(IndexError):
        events.run_next()
