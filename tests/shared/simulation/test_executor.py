"""How long steps of a simulated executor take, and what it tells of them."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import StepPlan
from shared.scheduling.request import Kind, Request
from shared.simulation.executor import Progress, VirtualExecutor
from shared.simulation.setup import ExecutorSetup
from shared.simulation.stages import INTERRUPTED_AFTER
from tests.shared.simulation.test_system import MODEL, Run, make_offline, make_setup

SLOWER = LinearLatencyModel(8.0, 0.2, 0.002, 0.0, 0.0, 0.3, 0.5)
CHUNK = 64  # tokens of a step, at the most


class Heard(Run):
    """What its executors told, in order."""

    def __init__(self, setups: Sequence[ExecutorSetup], message_s: float = 0.0) -> None:
        self.told: list[Progress] = []
        super().__init__(setups, message_s)

    def take(self, progress: Progress) -> None:
        super().take(progress)
        self.told.append(progress)

    @property
    def executor(self) -> VirtualExecutor:
        return self.system.executors["executor-0"]

    @property
    def gains_s(self) -> list[float]:
        """When there was a token, the last one of each request included."""
        return [each.end_s for each in self.told for _ in (*each.outputs, *each.ended)]


def request(number: int, num_prompt_tokens: int, num_tokens: int, arrival_s: float = 0.0) -> GenerateRequest:
    token_ids = [1000 * number + index for index in range(num_prompt_tokens)]
    sampling = SamplingParams(num_tokens, seed=number, ignore_eos=True)
    return GenerateRequest(f"on-{number}", Kind.ONLINE, token_ids, sampling, arrival_s)


def step_s(*scheduled: tuple[int, int], model: LinearLatencyModel = MODEL) -> float:
    """Of tokens over so many computed ones, of each request."""
    features = BatchFeatures()
    features.add_all(scheduled)
    return model.predict_ms(features) / 1e3


def test_steps_follow_each_other_from_when_the_request_comes() -> None:
    """A prompt of 100 tokens in two chunks, then a token a step."""
    run = Heard([make_setup("online-only")])
    run.play([request(0, 100, 4, arrival_s=2.0)])
    steps_s = [step_s((64, 0)), step_s((36, 64)), *(step_s((1, 100 + number)) for number in range(3))]
    ends_s = [2.0 + sum(steps_s[: number + 1]) for number in range(len(steps_s))]
    assert [each.end_s for each in run.told] == pytest.approx(ends_s)
    assert [each.start_s for each in run.told] == pytest.approx([2.0, *ends_s[:-1]])
    assert run.gains_s == pytest.approx(ends_s[1:])
    assert run.executor.replica.totals.busy_s == pytest.approx(sum(steps_s))


def test_messages_take_their_time_both_ways() -> None:
    run, heard_s = Heard([make_setup("online-only")], message_s=0.25), list[float]()
    take = run.system._on_progress

    def note(progress: Progress) -> None:
        heard_s.append(run.system.events.now_s)
        take(progress)

    run.system._on_progress = note
    run.play([request(0, 20, 1, arrival_s=1.0)])
    assert [each.end_s for each in run.told] == [pytest.approx(1.25 + step_s((20, 0)))]
    assert heard_s == [pytest.approx(1.5 + step_s((20, 0)))]
    assert run.executor.longest_plan_ms == pytest.approx(step_s((20, 0)) * 1e3), "which it planned itself"


def test_steps_in_a_pipeline_overlap_and_time_counts_once() -> None:
    """Two stages: the second request's prompt enters the first stage when the first one's has left it."""
    run = Heard([make_setup("online-only", depth=2)])
    run.play([request(number, CHUNK, 1) for number in range(2)])
    chunk_s = step_s((CHUNK, 0))
    assert [(each.start_s, each.end_s) for each in run.told] == [
        (0.0, pytest.approx(chunk_s)),
        (pytest.approx(chunk_s), pytest.approx(1.5 * chunk_s)),
    ]
    assert run.executor.replica.totals.busy_s == pytest.approx(1.5 * chunk_s)


def test_steps_take_what_the_device_takes_and_are_planned_with_what_is_known_of_it() -> None:
    run = Heard([replace(make_setup("online-only"), latency=SLOWER)])
    run.play([request(0, 50, 2)])
    assert run.gains_s[0] == pytest.approx(step_s((50, 0), model=SLOWER))
    assert run.executor.longest_plan_ms == pytest.approx(step_s((50, 0)) * 1e3)


def test_a_plan_that_never_runs_is_one_of_those_that_were_made() -> None:
    run, plans = Heard([make_setup("online-only")]), list[StepPlan]()
    take = run.executor.take_plan
    run.executor.take_plan = plans.append  # type: ignore[method-assign]
    run.play([request(0, 50, 2)])
    longest_ms = run.executor.longest_plan_ms
    take(structs.replace(plans[0], latency_ms=longest_ms + 9.0))
    assert run.executor.longest_plan_ms == longest_ms + 9.0


def test_noise_is_lognormal_and_of_its_seed() -> None:
    """It lengthens steps, not plans."""

    def factors(sigma: float, seed: int, num_executors: int = 1) -> list[float]:
        run = Heard([replace(make_setup("online-only"), noise=sigma, seed=seed)] * num_executors)
        run.play([request(number, 10, 150) for number in range(num_executors)])
        (*_, last) = run.system.executors.values()
        assert last.longest_plan_ms <= step_s((1, 160)) * 1e3 + step_s((10, 0)) * 1e3
        ends_s = [0.0, *(each.end_s for each in run.told if each.executor_id == last.info.executor_id)]
        expected_s = [step_s((10, 0)), *(step_s((1, 10 + number)) for number in range(len(ends_s) - 2))]
        return [
            (end_s - start_s) / each_s for (start_s, end_s), each_s in zip(pairwise(ends_s), expected_s, strict=True)
        ]

    logarithms = [math.log(each) for each in factors(0.2, seed=1)]
    assert len(logarithms) == 150
    assert statistics.fmean(logarithms) == pytest.approx(0, abs=0.04)
    assert statistics.stdev(logarithms) == pytest.approx(0.2, rel=0.15)
    assert factors(0.2, seed=1) == factors(0.2, seed=1) != factors(0.2, seed=2)
    assert factors(0.2, seed=1, num_executors=2) != factors(0.2, seed=1), "of each executor its own"
    assert factors(0.0, seed=1) == pytest.approx([1.0] * 150)


@pytest.mark.parametrize("share", [0.25, 0.99])
def test_an_online_request_stops_offline_work_at_its_next_layer(share: float) -> None:
    """Which is computed anew after it. ``share``: of the step that runs, when the request comes."""
    setup = make_setup("hygen")
    setup = replace(setup, spec=structs.replace(setup.spec, is_interruptible=True))
    run = Heard([setup])
    run.system.queue.add([make_offline(0)])
    events = run.system.events
    while not run.executor.replica.in_flight():
        events.run_next()
    (entry,) = run.executor.replica.in_flight()[0]
    long_s = step_s((entry.num_scheduled_tokens, 0))
    came_s = share * long_s
    run.play([request(0, CHUNK, 2, arrival_s=came_s)])
    stopped, first, *_ = run.told
    assert stopped.end_s == pytest.approx(min(long_s, came_s + INTERRUPTED_AFTER * long_s))
    assert stopped.outputs == [] and stopped.ended == []
    assert first.end_s == pytest.approx(stopped.end_s + step_s((CHUNK, 0)))
    assert run.executor.replica.totals.busy_s == pytest.approx(sum(each.end_s - each.start_s for each in run.told))
    assert run.ended == {"on-0": 1, "batch.0": 1}


class Recorded(LinearLatencyModel):
    """What steps took, asked for once for each that was run."""

    total_ms = 0.0

    def predict_ms(self, features: BatchFeatures) -> float:
        latency_ms = super().predict_ms(features)
        Recorded.total_ms += latency_ms
        return latency_ms


def test_a_step_waits_for_kv_that_comes_back() -> None:
    """Offline requests are paused for bursts of online ones, and go on."""
    Recorded.total_ms = 0.0
    setup = make_setup("bros")
    spec = structs.replace(setup.spec, swap_ms_per_slot=0.05)
    run = Heard([replace(setup, spec=spec, latency=Recorded(*MODEL.coefficients()))])
    run.system.queue.add([make_offline(number) for number in range(30)])
    run.play([request(number, 100, 10, arrival_s=0.5 * (number // 5)) for number in range(20)])
    totals = run.executor.replica.totals
    assert totals.copy_wait_s == pytest.approx(totals.restored_slots * spec.swap_ms_per_slot / 1e3) and totals.pauses
    assert totals.busy_s == pytest.approx(Recorded.total_ms / 1e3 + totals.copy_wait_s)


def test_what_is_aborted_ends_without_a_step() -> None:
    run = Heard([make_setup("online-only")])
    run.system.submit(request(0, 20, 5))
    run.executor.abort(["on-0"])
    run.play([])
    assert [ended.finish_reason for each in run.told for ended in each.ended] == ["abort"]
    assert (run.last_s, run.executor.replica.has_work) == (0.0, False)


def test_tokens_are_those_of_the_seed_and_look_like_no_prompt() -> None:
    run = Heard([make_setup("online-only")])
    rng = random.Random(1)
    run.play([replace_seed(request(number, 10, 3), rng.randrange(1 << 40)) for number in range(5)])
    tokens = {ended.sequence.request_id: ended.sequence.output_token_ids for each in run.told for ended in each.ended}
    assert all(len(each) == 3 and len(set(each)) == 1 and each[0] >= 1 << 24 for each in tokens.values())
    assert len({each[0] for each in tokens.values()}) == 5


def replace_seed(asked: GenerateRequest, seed: int) -> GenerateRequest:
    return structs.replace(asked, sampling=structs.replace(asked.sampling, seed=seed))


def test_kv_of_requests_that_go_on_next_comes_back_beside_the_step_before() -> None:
    """Few wait for it: that step is as long as most of it takes."""
    setup = make_setup("bros")
    spec = structs.replace(setup.spec, swap_ms_per_slot=0.05)
    setup = replace(setup, spec=spec, limits=replace(setup.limits, swap_ms_per_slot=0.05))
    run = Heard([setup])
    long = [as_offline(request(100 + number, 100 + number, 100)) for number in range(10)]
    run.system.queue.add(
        [
            (Request(each.request_id, Kind.OFFLINE, 100 + number, 200 + number), PackedRequest.of(each))
            for number, each in enumerate(long)
        ]
    )
    run.play([request(number, 100, 10, arrival_s=0.5 * (number // 5)) for number in range(20)])
    totals = run.executor.replica.totals
    assert totals.restored_slots > 100
    assert totals.copy_wait_s < 0.2 * totals.restored_slots * spec.swap_ms_per_slot / 1e3


def as_offline(asked: GenerateRequest) -> GenerateRequest:
    return structs.replace(asked, request_id=f"batch.{asked.request_id}", kind=Kind.OFFLINE)
