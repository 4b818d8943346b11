"""What a request's counts say of it."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.request import HELD, Kind, Request, split_decodes
from tests.shared.scheduling.factories import make_request

requests = st.builds(
    lambda computed, remaining, kind: make_request("", kind, prompt=computed + remaining, computed=computed),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from(Kind),
)


@given(
    computed=st.integers(0, 100),
    num_blocks=st.integers(0, 30),
    kept=st.none() | st.integers(0, 30),
    more=st.integers(1, 100),
    block_size=st.integers(1, 20),
)
def test_new_blocks_are_those_of_its_positions_that_are_not_its_own(
    computed: int, num_blocks: int, kept: int | None, more: int, block_size: int
) -> None:
    """Of a paused request what it kept is its own, and nothing of it is free once it gives way."""
    request = make_request(prompt=300, computed=computed, blocks=num_blocks)
    request.num_kept_blocks = kept
    own = num_blocks if kept is None else kept
    needed = {position // block_size for position in range(computed + more)}
    assert request.num_new_blocks(more, block_size) == len([*needed][own:])
    assert request.num_own_blocks == own and request.is_paused is (kept is not None)
    assert request.is_running is (num_blocks > 0)
    assert request.num_freed_blocks == (num_blocks if kept is None else 0)


@given(requests)
def test_a_decode_computes_its_last_token_over_kv_that_is_there(request: Request) -> None:
    assert request.num_remaining_tokens == request.num_tokens - request.num_computed_tokens
    assert request.is_decode is (request.num_computed_tokens > 0 and request.num_remaining_tokens == 1)


@given(st.lists(requests))
def test_decodes_are_parted_from_the_others_each_in_order(held: list[Request]) -> None:
    decodes, prefills = split_decodes(held)
    assert decodes == [request for request in held if request.is_decode]
    assert prefills == [request for request in held if not request.is_decode]


def test_who_is_held_for_another_executor_is_in_flight_as_one_in_a_step_is() -> None:
    request = make_request(computed=16)
    states = []
    for num_in_flight in (0, 5, HELD):
        request.num_in_flight_tokens = num_in_flight
        states.append((request.is_in_flight, request.is_held))
    assert states == [(False, False), (True, False), (True, True)]
