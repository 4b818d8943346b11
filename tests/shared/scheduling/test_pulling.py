"""OOCO Alg. 1 and the choice of a taker against naive versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.architectures import ARCHITECTURES
from shared.latency.bottleneck import saturated_batch_size
from shared.latency.devices import DEVICES
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.scheduling.placement.pulling import SHORTEST, Node, Preference, last_batch, nearest, preference
from shared.scheduling.placement.pushing import Taker, best_taker
from shared.scheduling.request import HELD, Kind
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.scheduling.factories import make_decode, make_request, make_table

LINEAR = LinearLatencyModel(10.0, 0.5, 0.01, 0.0, 0.0, 0.5, 0.5)
ROOFLINE = RooflineLatencyModel.of(ARCHITECTURES["llama2-7b"], DEVICES["a100-40g"])
MODELS = pytest.mark.parametrize("model", [LINEAR, ROOFLINE], ids=["linear", "roofline"])
MARGIN = 0.1


def latency_ms(model: LatencyModel, lens: list[int]) -> float:
    features = BatchFeatures()
    features.add_decodes(lens)
    return model.predict_ms(features)


def node_of(
    model: LatencyModel, lens: list[int], saturated: int, free_tokens: int, free_seqs: int = 64, has_all: bool = True
) -> Node:
    features = BatchFeatures()
    features.add_decodes(lens)
    return Node(features, has_all, model, saturated, free_tokens, free_seqs)


def naive_longest(
    model: LatencyModel, lens: list[int], count: int, limit_ms: float, free_tokens: int, free_seqs: int
) -> int:
    """Every length is tried."""
    fits = [
        tokens
        for tokens in range(1, free_tokens + 1)
        if latency_ms(model, [*lens, *[tokens] * count]) <= limit_ms
        and tokens * count <= free_tokens
        and count <= free_seqs
    ]
    return max(fits, default=0)


def naive_preference(
    model: LatencyModel,
    lens: list[int],
    has_all: bool,
    limit_ms: float,
    saturated: int,
    free_tokens: int,
    free_seqs: int,
) -> Preference | None:
    """Alg. 1 by its lines, and how many are asked for."""
    if not (latency_ms(model, lens) <= (1 - MARGIN) * limit_ms and has_all):  # 2
        return None  # 16
    alone = naive_longest(model, lens, 1, limit_ms, free_tokens, free_seqs)
    if alone == 0:  # nobody would fit
        return None
    if len(lens) >= saturated:  # 4
        return Preference(alone, 1, alone)  # 5
    of_group = naive_longest(model, lens, saturated - len(lens), limit_ms, free_tokens, free_seqs)
    if of_group:
        return Preference(of_group, saturated - len(lens), alone)  # 7 and 8
    mean = -(-sum(lens) // len(lens)) if lens else free_tokens + 1
    fitting = [
        count
        for count in range(1, free_seqs + 1)
        if count * mean <= free_tokens and latency_ms(model, [*lens, *[mean] * count]) <= limit_ms
    ]
    count = max(fitting, default=0)
    return Preference(SHORTEST, count, count * mean) if count else Preference(SHORTEST, 1, alone)  # 9 and 10


@MODELS
@given(
    lens=st.lists(st.integers(1, 900), max_size=12),
    has_all=st.sampled_from([True, True, True, False]),
    eighths_ms=st.integers(0, 800),
    saturated=st.integers(1, 20),
    free_tokens=st.integers(0, 200),
    free_seqs=st.integers(0, 20),
)
def test_the_preference_is_the_algorithms(
    model: LatencyModel,
    lens: list[int],
    has_all: bool,
    eighths_ms: int,
    saturated: int,
    free_tokens: int,
    free_seqs: int,
) -> None:
    limit_ms = eighths_ms / 8 + 0.00037  # no batch takes exactly as long
    node = node_of(model, lens, saturated, free_tokens, free_seqs, has_all)
    ours = preference(node, limit_ms, MARGIN)
    assert ours == naive_preference(model, lens, has_all, limit_ms, saturated, free_tokens, free_seqs)


@MODELS
@given(
    lens=st.lists(st.integers(1, 900), max_size=12),
    offered=st.lists(st.integers(1, 3000), max_size=30),
    limit_ms=st.floats(10, 200),
    saturated=st.integers(1, 30),
    free_tokens=st.integers(1, 20_000),
)
def test_what_is_sent_fits(
    model: LatencyModel, lens: list[int], offered: list[int], limit_ms: float, saturated: int, free_tokens: int
) -> None:
    wanted = preference(node_of(model, lens, saturated, free_tokens, 16), limit_ms, MARGIN)
    if wanted is None:
        return
    candidates = [(f"off-{n}", tokens) for n, tokens in enumerate(offered)]
    chosen = nearest(wanted.num_tokens, candidates, wanted.num_requests, wanted.most_tokens)
    sent = [dict(candidates)[request_id] for request_id in chosen]
    assert len(set(chosen)) == len(chosen) <= wanted.num_requests <= 16
    assert sum(sent) <= free_tokens
    assert latency_ms(model, [*lens, *sent]) <= limit_ms + 1e-9
    assert sent or all(tokens > wanted.most_tokens for tokens in offered)
    if sent:
        distances = [abs(tokens - wanted.num_tokens) for tokens in offered if tokens <= wanted.most_tokens]
        assert abs(sent[0] - wanted.num_tokens) == min(distances)


def test_the_three_preferences() -> None:
    """S is 40 ms: 29.5 ms are for KV tokens beside one decode, of 0.01 ms each; each decode takes half a ms."""
    saturated = preference(node_of(LINEAR, [100] * 4, 4, 10_000), 40.0, MARGIN)
    assert saturated == Preference(2350, 1, 2350)  # 40 - 10 - 5 x 0.5 - 4 x 1
    short_of_memory = preference(node_of(LINEAR, [100] * 4, 4, 500), 40.0, MARGIN)
    assert short_of_memory == Preference(500, 1, 500)
    can_saturate = preference(node_of(LINEAR, [100] * 4, 6, 10_000), 40.0, MARGIN)
    assert can_saturate == Preference(1150, 2, 2350)  # (40 - 10 - 6 x 0.5 - 4) / 2
    never = preference(node_of(LINEAR, [100] * 4, 1000, 10_000), 40.0, MARGIN)
    assert never == Preference(SHORTEST, 16, 1600)  # 24 ms, 1.5 each
    few_places, little_memory = (node_of(LINEAR, [100] * 4, 1000, *free) for free in ((10_000, 3), (250, 64)))
    assert preference(few_places, 40.0, MARGIN) == Preference(SHORTEST, 3, 300)
    assert preference(little_memory, 40.0, MARGIN) == Preference(SHORTEST, 2, 200)
    assert preference(node_of(LINEAR, [], 1000, 10_000), 40.0, MARGIN) == Preference(SHORTEST, 1, 2950)
    assert preference(node_of(LINEAR, [100] * 18, 1000, 10_000), 40.0, MARGIN) is None, "no margin is left"
    assert preference(node_of(LINEAR, [100] * 18, 1000, 10_000), 40.0, 0.0) is not None
    assert preference(node_of(LINEAR, [100] * 4, 4, 10_000), 32.0, 0.5) is not None, "exactly half is left"
    assert preference(node_of(LINEAR, [100] * 4, 4, 10_000), 31.9, 0.5) is None
    assert preference(node_of(LINEAR, [100] * 4, 4, 10_000, free_seqs=0), 40.0, MARGIN) is None
    size = saturated_batch_size(ROOFLINE)
    wanted = preference(node_of(ROOFLINE, [], size, 200_000, 512), 100.0, MARGIN)
    assert wanted is not None and wanted.num_requests == size


def test_the_nearest_are_chosen() -> None:
    held = [("a", 100), ("b", 900), ("c", 480), ("d", 520), ("e", 2000)]
    assert nearest(500, held, 2, 5000) == ["c", "d"]
    assert nearest(500, held, 1, 5000) == ["c"], "the first of equals"
    assert nearest(500, held, 3, 5000) == ["c", "d", "a"], "a fourth hundred more would be too many"
    assert nearest(SHORTEST, held, 3, 600) == ["a", "c"]
    assert nearest(2500, held, 1, 2500) == ["e"]
    assert nearest(300, held[1:2], 1, 1000) == ["b"], "alone it may be longer"
    assert nearest(300, held[1:2], 1, 800) == nearest(300, [], 1, 800) == []


def test_the_review_of_the_last_step() -> None:
    online, included, left_out = (
        make_decode("on"),
        make_decode("in", Kind.OFFLINE, 50),
        make_decode("out", Kind.OFFLINE),
    )
    table = make_table(online, included, left_out)
    entries = [ScheduledRequest(request.request_id, request.kind, 1) for request in (online, included)]
    entries.insert(1, ScheduledRequest("ended", Kind.ONLINE, 1))
    table.add(make_request("prompt", prompt=300, computed=200))
    entries.append(ScheduledRequest("prompt", Kind.ONLINE, 200))
    batch, has_all = last_batch(table, entries)
    assert batch == BatchFeatures(0, 0, 101 + 51, 2, 0, 101) and not has_all
    left_out.num_in_flight_tokens = HELD
    assert last_batch(table, entries)[1]
    left_out.num_in_flight_tokens = 0
    entries.append(ScheduledRequest("out", Kind.OFFLINE, 1))
    assert last_batch(table, entries)[1]
    table.add(make_request("lost", Kind.OFFLINE))
    assert not last_batch(table, entries)[1], "it is to be computed again first"
    assert last_batch(make_table(), []) == (BatchFeatures(), True)


takers = st.builds(
    lambda lens, limit_ms, free: (lens, limit_ms, free),
    st.lists(st.integers(1, 4000), max_size=8),
    st.sampled_from([15.0, 30.0, 60.0]),
    st.integers(0, 5000),
)


@given(st.lists(takers, max_size=6), st.integers(1, 4000))
def test_the_best_taker_is_the_least_late(drawn: list[tuple[list[int], float, int]], num_tokens: int) -> None:
    made = [
        Taker(f"executor-{n}", node_of(LINEAR, lens, 1, 0).batch, LINEAR, limit_ms, free)
        for n, (lens, limit_ms, free) in enumerate(drawn)
    ]
    best = best_taker(made, num_tokens)
    fits = [n for n, (_, _, free) in enumerate(drawn) if free >= num_tokens]
    if best is None:
        assert not fits
        return
    step_ms = {n: latency_ms(LINEAR, [*drawn[n][0], num_tokens]) for n in fits}
    late_ms = {n: max(0.0, step_ms[n] - drawn[n][1]) for n in fits}
    chosen = int(best.executor_id.removeprefix("executor-"))
    assert chosen in fits
    assert late_ms[chosen] == min(late_ms.values())
    assert step_ms[chosen] == min(step_ms[n] for n in fits if late_ms[n] == late_ms[chosen])
    assert best_taker(made[::-1], num_tokens) == best, "whatever the order"


@pytest.mark.parametrize("late_ms", [0.1, 6.0])
def test_a_longer_step_in_time_is_better_than_a_shorter_one_that_is_late_with_the_request(late_ms: float) -> None:
    """Without the request itself neither would be late."""
    num_tokens = 1000
    short, long = list[int](), [100]
    with_it_ms = latency_ms(LINEAR, [*short, num_tokens])
    assert latency_ms(LINEAR, short) < with_it_ms - late_ms
    late = Taker("late", node_of(LINEAR, short, 1, 0).batch, LINEAR, with_it_ms - late_ms, 5000)
    timely = Taker("timely", node_of(LINEAR, long, 1, 0).batch, LINEAR, 60.0, 5000)
    assert late.step_ms(num_tokens) == pytest.approx(with_it_ms) and with_it_ms < timely.step_ms(num_tokens) < 60.0
    assert best_taker([late, timely], num_tokens) is timely


def test_equals_are_chosen_by_room_then_by_name() -> None:
    free = {"b": 100, "a": 100, "c": 200}
    made = [Taker(name, BatchFeatures(), LINEAR, 40.0, tokens) for name, tokens in free.items()]
    assert [best_taker(made[:count], 10) for count in (2, 3)] == [made[1], made[2]]
