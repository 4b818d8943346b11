"""What runs, as blend weighs it: the most that requests hold together, and how much computing goes with what they
read."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.orders.offline.blend import BlendOrder
from shared.scheduling.orders.offline.density.batch import most_held
from shared.scheduling.orders.offline.view import OfflineView
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request

FUTURES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50)), max_size=12).map(sorted)
ROOM = 2_000  # blocks


@given(FUTURES, st.integers(1, 40))
def test_the_most_held_is_what_playing_it_shows(futures: list[tuple[int, int]], num_steps: int) -> None:
    ends = [rest for rest, _ in futures if rest <= num_steps]
    each = [sum(held + step for rest, held in futures if rest >= step) for step in range(1, max(ends, default=0) + 1)]
    assert most_held(futures, num_steps) == max(each, default=0)


def make(name: str, prompt: int, output: int) -> Request:
    return Request(name, Kind.OFFLINE, prompt, prompt + output, ends_at_limit=True)


def make_order(requests: Iterable[Request]) -> BlendOrder:
    """No two share anything."""
    order = BlendOrder(16, 0.0, 0.01)
    for number, request in enumerate(requests):
        order.add(request, pack_tokens([number + 1] * request.num_tokens))
    return order


def step(order: BlendOrder, running: list[Request]) -> list[str]:
    """Who enters, all that may; they run from then on."""
    num_blocks = sum(each.num_blocks for each in running)
    view = OfflineView("executor-0", num_free_blocks=ROOM - num_blocks, running_offline=list(running))
    entered = []
    for request in order.in_order(view):
        view.features.add_prefill(request.num_tokens, 0)
        entered.append(request)
    for request in entered:
        order.take(request.request_id, "executor-0")
        total, num_tokens = request.max_total_tokens, request.num_tokens
        running.append(
            Request(request.request_id, Kind.OFFLINE, num_tokens + 1, total, num_tokens, num_tokens // 16 + 1)
        )
    return [each.request_id for each in entered]


def decode(order: BlendOrder, running: list[Request], num_steps: int) -> None:
    """Each gets so many tokens; who has all of them is gone."""
    for request in list(running):
        request.num_tokens += num_steps
        request.num_computed_tokens += num_steps
        request.num_blocks = request.num_tokens // 16 + 1
        if request.num_tokens >= request.max_total_tokens:
            running.remove(request)
            order.remove(request.request_id)


def test_computing_enters_as_more_is_read() -> None:
    """Long requests that begin together read little at first; so little of the rest enters beside them, and more as
    they grow, until the last of them ends."""
    order = make_order(
        [*(make(f"chat-{n}", 320, 8) for n in range(2_000)), *(make(f"long-{n}", 32, 3_000) for n in range(20))]
    )
    running: list[Request] = []
    first = step(order, running)
    assert {each for each in first if each.startswith("long")} and len(first) < 40
    entered = []
    for _ in range(50):
        decode(order, running, 60)
        entered.append(sum(each.startswith("chat") for each in step(order, running)))
    early, late = sum(entered[:10]), sum(entered[30:40])
    assert 0 < 2 * early < late
    assert sum(entered[:40]) < 2_000, "some are left until the last"


def test_equals_do_not_wait_for_each_other() -> None:
    """Also the last of them, when those that run have nothing but reading left."""
    for prompt, output in ((320, 8), (320, 300), (32, 3_000)):
        num = 60_000 // (prompt + output)
        order = make_order(make(f"same-{n}", prompt, output) for n in range(num))
        running: list[Request] = []
        fits = ROOM * 16 // (prompt + output)
        assert len(step(order, running)) == min(num, fits)
        decode(order, running, output - 1)
        assert not running and len(step(order, running)) == min(num - fits, fits)


def test_dense_requests_alone_take_all_the_room() -> None:
    order = make_order(
        [*(make(f"short-{n}", 320, 2) for n in range(60)), *(make(f"chat-{n}", 320, 4) for n in range(60))]
    )
    assert len(step(order, [])) == ROOM * 16 // 323


def test_all_that_waits_enters_in_the_end() -> None:
    lengths = [(320, 8), (160, 100), (64, 2_000), (1_600, 2), (32, 5_000)]
    order = make_order(make(f"r-{n}", *lengths[n % len(lengths)]) for n in range(200))
    running: list[Request] = []
    seen: list[str] = []
    while order.num_waiting or running:
        seen += step(order, running)
        assert running
        decode(order, running, 1 + min(each.max_total_tokens - each.num_tokens for each in running))
    assert sorted(seen) == sorted(f"r-{n}" for n in range(200))
