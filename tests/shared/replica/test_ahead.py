"""What a step stands on that begins ahead: who goes on, and whether all of it has room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.replica.ahead import ExpectedOutcome, HeldNow
from shared.replica.replica import Replica
from shared.replica.sequence import LiveSequence
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.replica.test_kv_allocation import allocate, make_replica, run
from tests.shared.replica.test_replica import MODEL, make_request, make_spec


def sequence_of(num_computed: int, prompt: int = 40, max_tokens: int = 9, **sampling: object) -> LiveSequence:
    request = make_request("a", prompt, max_tokens, Kind.OFFLINE, **sampling)
    sequence = LiveSequence.admit(request, make_spec(), None)
    sequence.request.num_computed_tokens = num_computed
    return sequence


@pytest.mark.parametrize(
    ("num_tokens", "sampling", "expected"),
    [
        (20, {}, [False]),
        (40, {}, [True]),
        (20, {"max_tokens": 1}, [False]),
        (40, {"max_tokens": 1}, []),
        (40, {"max_tokens": 2}, [True]),
        (20, {"presence_penalty": 0.5}, [False]),
        (40, {"presence_penalty": 0.5}, None),
        (40, {"max_tokens": 1, "presence_penalty": 0.5}, []),
        (20, {"n": 2}, [False]),
        (40, {"n": 2}, None),
        (40, {"max_tokens": 1, "n": 2}, None),
    ],
)
def test_who_goes_on_with_a_token_more_or_without(
    num_tokens: int, sampling: dict[str, object], expected: list[bool] | None
) -> None:
    """Who ends with that token does not; nothing is expected where the next depends on it. Who leaves goes on in no
    case, nor keeps anybody."""
    sequence, other = sequence_of(0, **sampling), sequence_of(0)
    other.request.request_id = "other"
    running = [(sequence, num_tokens), (other, 1)]
    outcome = ExpectedOutcome.of(running, {})
    gains = None if outcome is None else [gains for each, _, gains in outcome.rows if each is sequence]
    assert gains == expected
    assert outcome is None or outcome.rows[-1] == (other, 1, False)
    without = ExpectedOutcome.of(running, {"a"})
    assert without is not None and without.rows == [(other, 1, False)]


def held_now(replica: Replica, *left: str) -> HeldNow:
    cache = replica.step_state(Policy(), MODEL).cache
    return HeldNow(replica.table, left, cache, replica.pool.num_free, replica.limits.block_size)


@settings(max_examples=60)
@given(
    num_blocks=st.integers(8, 13),
    chunks=st.tuples(*[st.integers(0, 60)] * 2),
    alike=st.sampled_from(["held", "cached", "nobody"]),
    length=st.integers(20, 70),
    num_tokens=st.integers(0, 70),
)
def test_a_step_has_room_where_giving_out_its_blocks_leaves_nobody_out(
    num_blocks: int, chunks: tuple[int, int], alike: str, length: int, num_tokens: int
) -> None:
    """Of two that run and one that enters, which begins as one of them does, as one that has ended, or as nobody."""
    prompts = {"gone": 33, "first": 40, "second": 60}
    replica, engine = make_replica(num_blocks, *((key, prompt, Kind.OFFLINE) for key, prompt in prompts.items()))
    run(replica, engine, {"gone": 33})
    replica.abort(["gone"])
    run(replica, engine, {"first": 40, "second": 1})
    first = {"held": 1000, "cached": 0, "nobody": 9000}[alike]
    replica.submit(make_request("enters", length, 8, Kind.OFFLINE, first=first))
    request = replica.table.get("enters")
    assert request is not None
    found = replica.step_state(Policy(), MODEL).cache.found(request).num_tokens
    wanted = {"first": min(1, chunks[0]), "second": min(chunks[1], 59), "enters": min(num_tokens, length - found)}
    wanted = {key: count for key, count in wanted.items() if count}
    entries = [ScheduledRequest(key, Kind.OFFLINE, count) for key, count in wanted.items()]
    has_room = held_now(replica).can_run_beside(Schedule(entries, [], 0.0))
    assert has_room is (bool(wanted) and allocate(replica, wanted) == wanted)


def test_a_step_ahead_is_whole_and_of_who_is_there_and_in_no_step() -> None:
    replica, engine = make_replica(20, ("a", 20, Kind.OFFLINE), ("b", 20, Kind.OFFLINE))
    run(replica, engine, {"a": 20, "b": 20})
    schedule = Schedule([ScheduledRequest("a", Kind.OFFLINE, 1)], [], 0.0)
    assert held_now(replica).can_run_beside(schedule)
    assert not held_now(replica, "a").can_run_beside(schedule), "its blocks are still written"
    for odd in (
        replace(schedule, entries=[]),
        replace(schedule, preempted=["b"]),
        replace(schedule, num_dropped=1),
        replace(schedule, entries=[*schedule.entries, ScheduledRequest("stranger", Kind.OFFLINE, 1)]),
    ):
        assert not held_now(replica).can_run_beside(odd)
    allocate(replica, {"a": 1})
    assert not held_now(replica).can_run_beside(schedule)
