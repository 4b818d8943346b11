"""How long one more request would wait, in made-up time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.access.waiting_room import WINDOW_S, WaitingRoom


def test_a_lasting_queue_is_timed_by_what_starts() -> None:
    """100 requests of 50 tokens wait all the time, and 20 of them start each second."""
    room, number = WaitingRoom(), 0
    for number in range(100):
        room.enter(f"r{number}", "client", 50, 0.0)
    for tick in range(1, 301):
        now_s = tick / 20
        room.start(f"r{number - 99}", now_s)
        number += 1
        room.enter(f"r{number}", "client", 50, now_s)
    assert len(room) == 100 and room.num_tokens == 5000
    assert room.expected_wait_s(15.0) == pytest.approx(5.0, rel=0.02)
    assert room.expected_wait_s(15.0 + WINDOW_S / 2) == pytest.approx(10.0, rel=0.02)


def test_a_burst_after_quiet_says_nothing_yet() -> None:
    room = WaitingRoom()
    for second in range(100):
        room.enter("light", "client", 10, float(second))
        room.start("light", second + 0.1)
    for number in range(1000):
        room.enter(f"burst-{number}", "client", 10, 100.0)
    assert room.expected_wait_s(100.0 + WINDOW_S / 2) is None


def test_where_nothing_starts_the_wait_is_what_it_has_been() -> None:
    room = WaitingRoom()
    room.enter("a", "client", 10, 5.0)
    room.enter("b", "client", 10, 6.0)
    assert room.expected_wait_s(5.0 + WINDOW_S) == WINDOW_S
    room.start("a", 20.0)
    assert room.expected_wait_s(20.0 + WINDOW_S - 1) == pytest.approx(WINDOW_S)
    assert room.expected_wait_s(20.0 + 3 * WINDOW_S) == 3 * WINDOW_S
    room.leave("b")
    assert room.expected_wait_s(100.0) is None


def test_who_was_refused_makes_the_crowd() -> None:
    """Of 30 that came within the window ten were let in: the wait of all would have been three times as long."""
    room = WaitingRoom()
    assert room.crowd(0.0) == 1
    for number in range(20):
        room.enter(f"r{number}", "client", 10, 0.0)
        room.refuse(float(number >= 10))
    for number in range(10):
        room.start(f"r{number}", 1.0)
    assert room.crowd(1.0) == 3
    assert room.crowd(0.5 + WINDOW_S) == 2
    assert room.crowd(1.0 + WINDOW_S) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(("enter", "start", "leave")), st.integers(0, 8), st.integers(1, 99), st.floats(0, 5)),
        max_size=100,
    )
)
def test_its_sums_are_those_of_who_waits(events: list[tuple[str, int, int, float]]) -> None:
    room, now_s = WaitingRoom(), 0.0
    waiting: dict[str, int] = {}
    starts: list[tuple[float, int]] = []
    for kind, number, num_tokens, gap_s in events:
        now_s += gap_s
        request_id = str(number)
        if kind == "enter" and request_id not in waiting:
            if not waiting:
                starts.clear()
            waiting[request_id] = num_tokens
            room.enter(request_id, f"client-{number % 3}", num_tokens, now_s)
        elif kind == "start":
            if request_id in waiting:
                starts.append((now_s, waiting.pop(request_id)))
            room.start(request_id, now_s)
        elif kind == "leave":
            waiting.pop(request_id, None)
            room.leave(request_id)
        assert (len(room), room.num_tokens) == (len(waiting), sum(waiting.values()))
        for client in range(3):
            assert room.has(f"client-{client}") == any(int(each) % 3 == client for each in waiting)
        wait_s = room.expected_wait_s(now_s)
        recent = sum(tokens for at_s, tokens in starts if at_s > now_s - WINDOW_S)
        if wait_s is not None and recent:
            assert wait_s == pytest.approx(room.num_tokens * WINDOW_S / recent)
