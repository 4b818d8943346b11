"""The cost model of offline gating against each course that a request may take, counted out."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.scheduling.limits import Limits
from shared.scheduling.packing.gating import PRIOR_RUNS, WINDOW_STEPS, Evictions, Gate, mean_steps_before_eviction
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling import test_worked_example
from tests.shared.scheduling.factories import MODEL, make_decode, make_request, make_table, queue_of, tokens

MAX_CHUNK = 512
ROOFLINE = RooflineLatencyModel.of(ARCHITECTURES["llama2-7b"], DEVICES["a100-40g"])
TOKENS_ONLY = LinearLatencyModel(0.0, 0.5, 0.001, 0.0, 0.0, 0.5, 1.0)
INFINITE = float("inf")


def decode_ms(model: LatencyModel, count: int, mean_context: float) -> float:
    return model.predict_ms(BatchFeatures(0, 0, round(count * mean_context), count, 0, round(mean_context)))


def prefill_ms(model: LatencyModel, beside: BatchFeatures, num_tokens: int) -> float:
    done, total_ms = 0, 0.0
    while done < num_tokens:
        chunk = min(MAX_CHUNK, num_tokens - done)
        total_ms += model.prefill_cost_ms(beside, chunk, done)
        done += chunk
    return total_ms


def expected_ms(
    model: LatencyModel, contexts: list[int], prompt: int, num_steps: int, hazard: float
) -> tuple[float, float]:
    """Of the same tokens, n + 1 for each step: with the newcomer beside the n, every course that its stay may take
    weighted with its probability; and without, each step's batch of n."""
    count = len(contexts)
    beside = BatchFeatures()
    beside.add_decodes(contexts)
    context = (sum(contexts) + prompt) / (count + 1)
    with_ms, without_ms = decode_ms(model, count + 1, context), decode_ms(model, count, context)
    num_tokens = (count + 1) * num_steps
    total_ms, probability = 0.0, 1.0
    for done in range(num_steps):  # it is evicted after so many steps
        again_ms = prefill_ms(model, beside, prompt + done)
        left_ms = (num_tokens - (count + 1) * done) / count * without_ms
        total_ms += probability * hazard * (done * with_ms + again_ms + left_ms)
        probability *= 1.0 - hazard
    total_ms += probability * num_steps * with_ms
    return total_ms, num_tokens / count * without_ms


def gate_of(model: LatencyModel, contexts: list[int], hazard: float, budget_ms: float = INFINITE) -> Gate:
    begun = [make_decode(f"off-{n}", Kind.OFFLINE, context - 1) for n, context in enumerate(contexts)]
    return Gate(model, BatchFeatures(), begun, hazard, MAX_CHUNK, budget_ms)


def newcomer(prompt: int, num_steps: int, request_id: str = "new") -> Request:
    return make_request(request_id, Kind.OFFLINE, prompt=prompt, max_tokens=num_steps)


@pytest.mark.parametrize("model", [MODEL, ROOFLINE, TOKENS_ONLY], ids=["linear", "roofline", "tokens-only"])
@given(
    contexts=st.lists(st.integers(2, 4000), min_size=1, max_size=40),
    prompt=st.integers(1, 3000),
    num_steps=st.integers(1, 120),
    hazard=st.one_of(st.just(0.0), st.floats(1e-5, 0.5)),
)
def test_it_decides_as_all_courses_together_do(
    model: LatencyModel, contexts: list[int], prompt: int, num_steps: int, hazard: float
) -> None:
    with_ms, without_ms = expected_ms(model, contexts, prompt, num_steps, hazard)
    # The mean of recomputation is that of its tokens, but for chunks and for what is less than a token.
    assume(abs(with_ms - without_ms) > 0.002 * with_ms)
    assert gate_of(model, contexts, hazard).admit(newcomer(prompt, num_steps)) == (with_ms <= without_ms)


@given(st.floats(1e-9, 1.0), st.integers(1, 300))
def test_the_mean_stay_of_those_that_are_evicted(hazard: float, num_steps: int) -> None:
    weights = [hazard * (1.0 - hazard) ** done for done in range(num_steps)]
    mean = sum(done * weight for done, weight in enumerate(weights)) / sum(weights)
    assert mean_steps_before_eviction(hazard, num_steps) == pytest.approx(mean, rel=1e-3, abs=1e-3)


@given(st.lists(st.integers(2, 400), max_size=4), st.integers(1, 3 * MAX_CHUNK), st.sampled_from([1.0, 0.25]))
def test_what_is_risked_is_the_prompt_again_beside_the_decodes(contexts: list[int], prompt: int, hazard: float) -> None:
    """With the hazard of the only step that is to come, which is the next also where none should be."""
    beside = BatchFeatures()
    beside.add_decodes(contexts)
    expected_ms = hazard * prefill_ms(ROOFLINE, beside, prompt)
    for num_steps in (0, 1):
        risked_ms = gate_of(ROOFLINE, contexts, hazard).risked_ms(newcomer(prompt, num_steps))
        assert risked_ms == pytest.approx(expected_ms)


def test_one_may_always_begin_where_none_has() -> None:
    idle = Gate(MODEL, BatchFeatures(), [], 1.0, MAX_CHUNK, INFINITE)
    assert idle.admit(newcomer(3000, 1)) and not idle.admit(newcomer(3000, 1))
    beside_online = Gate(MODEL, BatchFeatures(0, 0, 1000, 10, 0, 100), [], 1.0, MAX_CHUNK, INFINITE)
    assert beside_online.admit(newcomer(3000, 1)) and not beside_online.admit(newcomer(3000, 1))


def test_where_nobody_was_evicted_all_may_begin() -> None:
    gate = gate_of(TOKENS_ONLY, [100] * 50, 0.0, budget_ms=1.0)
    assert all(gate.admit(newcomer(3000, 1)) for _ in range(20))


def test_a_batch_that_the_budget_keeps_from_growing_saves_nothing() -> None:
    assert gate_of(MODEL, [100] * 5, 1e-4, budget_ms=17.0).admit(newcomer(100, 50))
    assert not gate_of(MODEL, [100] * 5, 1e-4, budget_ms=16.0).admit(newcomer(100, 50))


def test_the_larger_the_batch_the_less_a_newcomer_saves() -> None:
    gate, count = gate_of(MODEL, [100], 0.01), 0
    while gate.admit(newcomer(400, 50)):
        count += 1
        assert count < 100
    assert count > 1


def test_the_documented_example() -> None:
    model = test_worked_example.MODEL
    chances = {chance: 1.0 - (1.0 - chance) ** (1 / 50) for chance in (1 / 3, 1 / 2)}
    third, half = (gate_of(model, [500] * 10, hazard) for hazard in chances.values())
    request = newcomer(400, 50)
    assert (third.saved_ms(request), third.risked_ms(request)) == pytest.approx((82, 71), abs=0.5)
    assert (half.saved_ms(request), half.risked_ms(request)) == pytest.approx((72, 106), abs=0.5)
    assert third.admit(request) and not half.admit(request)


def test_evictions_are_counted_by_step_and_fade() -> None:
    pace, entry = Pace(), ScheduledRequest("off", Kind.OFFLINE, 1)
    online = ScheduledRequest("on", Kind.ONLINE, 1)
    assert pace.after(Schedule([online], [], 1.0), 64).evictions is pace.evictions
    for _ in range(100):
        pace = pace.after(Schedule([online, entry, entry], [], 1.0), 64)
    assert pace.evictions.hazard == 0.0
    assert pace.evictions.runs == pytest.approx(200, rel=0.02)
    pace = pace.after(Schedule([online], ["a", "b", "online"], 1.0), 64, num_lost=2)
    seen = pace.evictions.hazard
    assert seen == pytest.approx(2 / (PRIOR_RUNS + 200), rel=0.01)
    for _ in range(3 * WINDOW_STEPS):
        pace = pace.after(Schedule([online], [], 1.0), 64)
    assert pace.evictions.hazard < seen / 10
    assert Evictions(lost=1e9).hazard == 1.0


@pytest.mark.parametrize("role", [Role.MIXED, Role.RELAXED, Role.STRICT])
def test_a_step_lets_in_whom_the_gate_does(role: Role) -> None:
    limits = Limits(16, 1000, 2048, 64)
    policy = Policy(10_000.0, packing="mix-decoding", role=role)
    queue = [newcomer(400, 5, f"new-{n}") for n in range(4)]

    def entered(lost: float, *held: Request) -> int:
        pace = Pace(evictions=Evictions(lost=lost, runs=1000.0))
        state = StepState(make_table(*held), 900, 100, limits, policy, MODEL, pace)
        return len(
            tokens(packing_named("mix-decoding").schedule(state, queue_of(queue))).keys()
            & {"new-0", "new-1", "new-2", "new-3"}
        )

    moving = make_decode("moving", Kind.OFFLINE)
    moving.num_in_flight_tokens = HELD
    running = [make_decode(f"off-{n}", Kind.OFFLINE) for n in range(5)]
    assert entered(0.0) == entered(0.0, *running) == 4
    assert entered(1000.0) == entered(1000.0, moving) == 1
    assert entered(1000.0, *running) == 0
