"""Deadlines over the life of a request: on a replica, in the picture that a scheduler has of it, and from SLOs."""

import random
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from loadgen.report.slo import parse_slo
from services.local.stack.options import deadlines_of
from shared.clock import waited_s
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import Scheduler
from shared.protocol.codec import decode, encode
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.offline.requests import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.replica.engine import StepResult
from shared.replica.outputs import ended_request
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from tests.shared.replica.factories import KV_STRATEGIES

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
SLO = TokenSlo(100.0, 40.0)
SPEC = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 64, (), num_host_slots=512)
LIMITS = Limits(16, 64, 64, 32)
INFO = ExecutorInfo("executor-0", "epoch-1", 1, "key", SPEC, 32, 64)


@dataclass
class ManualClock:
    """Stands still until it is told."""

    now_ms: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_ms / 1e3

    def unix_s(self) -> float:
        return self.now_ms / 1e3


def make_online(number: int, prompt: int = 20, max_tokens: int = 5) -> GenerateRequest:
    prompt_token_ids = list(range(600 * number, 600 * number + prompt))
    sampling = SamplingParams(max_tokens, seed=number, ignore_eos=True)
    return GenerateRequest(f"on-{number}", Kind.ONLINE, prompt_token_ids, sampling, 0.0)


def make_offline(number: int) -> OfflineRequest:
    sampling = SamplingParams(20, seed=number, ignore_eos=True)
    prompt_token_ids = list(range(40_000 + 100 * number, 40_090 + 100 * number))
    generate = GenerateRequest(f"batch.{number}", Kind.OFFLINE, prompt_token_ids, sampling, 0.0)
    return OfflineRequest(generate, "batch", number, f"custom-{number}", "m")


@dataclass
class Stack:
    """An executor and its scheduler on one clock; steps take what the model says, as far as the test says so."""

    strategy: Strategy
    clock: ManualClock = field(default_factory=ManualClock)
    step: int = 0
    plan: StepPlan | None = None

    def __post_init__(self) -> None:
        self.policy = self.strategy.policy(None)
        waited = partial(waited_s, self.clock)
        self.replica = Replica(LIMITS, SPEC, None, self.strategy, lambda: self.clock.now_ms, waited)
        self.pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)
        info = msgspec.structs.replace(INFO, strategy=self.strategy)
        self.scheduler = Scheduler(info, self.pool, self.tuning, self.clock)
        self.said: list[StepStarted] = []

    def tuning(self) -> tuple[Policy, LatencyModel]:
        return self.policy, MODEL

    def arrive(self, request: GenerateRequest) -> None:
        self.replica.submit(request)
        self.scheduler.on_inbox(request)

    def run_step(self, factor: float = 1.0) -> list[str]:
        """Who ran; nobody where there was nothing to run."""
        plan, self.plan = self.plan, None
        schedule = self.replica.schedule(plan, self.policy, MODEL)
        running = self.replica.allocate(schedule)
        self.say(idle=not running)
        if not running:
            return []
        features, sampled = BatchFeatures(), {}
        for sequence, num_tokens in running:
            request = sequence.request
            features.add_scheduled(num_tokens, request.num_computed_tokens)
            if request.num_computed_tokens + num_tokens == request.num_tokens:
                sampled[request.request_id] = 7
        latency_ms = MODEL.predict_ms(features) * factor
        self.clock.now_ms += latency_ms
        self.replica.finish(StepResult(sampled, latency_ms))
        self.step += 1
        self.replica.pool.check_integrity()
        self.replica.table.check_integrity()
        return [sequence.request_id for sequence, _ in running]

    def say(self, idle: bool) -> None:
        (entries,) = self.replica.in_flight() or [[]]
        message = StepStarted(
            "executor-0",
            "epoch-1",
            self.step,
            PlanSource.PLAN,
            idle,
            entries,
            self.replica.tell(),
            [ended_request(ended) for ended in self.replica.take_ended()],
            self.replica.pool.num_free,
            pace=self.replica.pace,
        )
        self.said.append(decode(encode(message), StepStarted))
        self.scheduler.on_step(self.said[-1])
        plans = self.scheduler.plan()
        self.plan = plans[0] if plans else None

    def remaining_ms(self, request_id: str) -> float:
        state = next(state for state in self.replica.tell() if state.request_id == request_id)
        return state.deadline_ms - self.replica.pace.now_ms


def strategy_of(preset: str, **changes: str) -> Strategy:
    slo = {"ttft_slo_ms": SLO.ttft_ms, "tpot_slo_ms": SLO.tpot_ms, "slo_group_tokens": SLO.group_tokens}
    return Strategy.of(preset, **slo, **changes)


def bros() -> Stack:
    return Stack(strategy_of("bros"))


def test_a_replica_tells_what_is_left_to_a_request() -> None:
    stack = bros()
    stack.arrive(make_online(1))
    stack.clock.now_ms += 30.0
    assert stack.remaining_ms("on-1") == pytest.approx(70.0)
    stack.run_step()
    assert stack.remaining_ms("on-1") == pytest.approx(40.0)
    stack.clock.now_ms += 15.0
    assert stack.remaining_ms("on-1") == pytest.approx(25.0)
    stack.run_step(factor=4.0)
    assert stack.remaining_ms("on-1") == pytest.approx(40.0)


def test_counted_from_the_arrival_what_a_step_took_longer_is_lost_to_the_next() -> None:
    stack = Stack(strategy_of("bros", deadline_rule="arrival"))
    stack.clock.now_ms += 30.0
    stack.arrive(msgspec.structs.replace(make_online(1), arrival_s=(stack.clock.now_ms - 25.0) / 1e3))
    assert stack.remaining_ms("on-1") == pytest.approx(75.0)
    began_ms = stack.clock.now_ms
    stack.run_step()
    stack.run_step(factor=4.0)
    assert stack.remaining_ms("on-1") == pytest.approx(75.0 + 2 * 40.0 - (stack.clock.now_ms - began_ms))


@pytest.mark.parametrize("rule", ["last-token", "arrival"])
@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_executor_and_scheduler_say_the_same_of_who_goes_on_here(rule: str, num_tokens: int) -> None:
    """Before the executor has told of it, and after."""
    stack = Stack(strategy_of("bros", deadline_rule=rule))
    resumed = msgspec.structs.replace(
        make_online(1, max_tokens=9),
        arrival_s=(stack.clock.now_ms - 250.0) / 1e3,
        output_token_ids=list(range(num_tokens)),
        is_resumed=True,
    )
    stack.arrive(resumed)
    mirrored = stack.scheduler._mirror.table.get("on-1")
    assert mirrored is not None
    left_ms = 100.0 if rule == "last-token" else 100.0 - 250.0 + 40.0 * num_tokens
    assert stack.remaining_ms("on-1") == pytest.approx(left_ms)
    assert mirrored.deadline_ms - stack.clock.now_ms == pytest.approx(left_ms)
    for factor in (1.0, 3.0):
        stack.run_step(factor)
        stack.say(idle=True)
        mirrored = stack.scheduler._mirror.table.get("on-1")
        assert mirrored is not None
        assert mirrored.deadline_ms - stack.clock.now_ms == pytest.approx(stack.remaining_ms("on-1"))


def test_an_offline_request_has_no_deadline() -> None:
    stack = bros()
    stack.replica.submit(make_offline(1).request)
    assert stack.remaining_ms("batch.1") == float("inf")


def test_steps_that_took_as_expected_run_as_planned() -> None:
    stack = bros()
    stack.pool.add([make_offline(number) for number in range(4)])
    for number in range(3):
        stack.arrive(make_online(number, prompt=30, max_tokens=8))
    planned = 0
    while stack.replica.has_work or not stack.said or stack.plan:
        plan = stack.plan
        ran = stack.run_step()
        if plan is not None:
            planned += 1
            assert ran == [entry.request_id for entry in plan.entries]
    totals = stack.replica.totals
    assert (totals.finished_online, totals.finished_offline, totals.offline_dropped) == (3, 4, 0)
    assert planned > 10


@pytest.mark.parametrize("rule", ["last-token", "arrival"])
@pytest.mark.parametrize("preset", ["bros", "round-robin", "fcfs", "echo"])
@pytest.mark.parametrize("kv", KV_STRATEGIES)
@pytest.mark.parametrize("seed", range(2))
def test_everything_ends_whatever_steps_take(rule: str, preset: str, kv: str, seed: int) -> None:
    rng = random.Random(seed)
    stack = Stack(strategy_of(preset, deadline_rule=rule, **{"kv_sharing": "recompute", **KV_STRATEGIES[kv]}))
    offline = [make_offline(number) for number in range(6)]
    stack.pool.add(offline)
    waiting = [make_online(number, rng.randint(1, 200), rng.randint(1, 40)) for number in range(12)]
    ended: set[str] = set()
    idle = 0
    while idle < 3:
        if waiting and rng.random() < 0.4:
            stack.arrive(waiting.pop())
        if rng.random() < 0.1:
            stack.plan = None  # a plan that is late
        idle = 0 if stack.run_step(rng.choice([0.5, 1.0, 3.0])) or waiting else idle + 1
        results = [ended for message in stack.said for ended in message.ended]
        stack.pool.discard([each.request_id for each in results if each.request_id.startswith("batch")])
        ended.update(each.request_id for each in results)
    assert len(ended) == 18 and stack.replica.pool.num_free == LIMITS.num_blocks


def test_the_batch_size_and_the_mean_step_travel_with_the_message() -> None:
    stack = bros()
    stack.arrive(make_online(1, max_tokens=10))
    stack.run_step()
    stack.run_step(factor=2.0)
    stack.run_step()
    pace = stack.said[-1].pace
    assert pace is not None and pace.batch_size == LIMITS.max_num_seqs
    assert pace.mean_step_ms == pytest.approx(7.0 + 0.1 + 0.1 * (2 * 5.521 - 7.1))
    assert stack.replica.pace.mean_step_ms != pace.mean_step_ms


def test_a_registration_carries_the_slo() -> None:
    info = msgspec.structs.replace(INFO, strategy=strategy_of("bros"))
    assert decode(encode(info), ExecutorInfo).strategy.token_slo == SLO
    assert msgspec.json.decode(msgspec.json.encode(info), type=ExecutorInfo).strategy.token_slo == SLO


@pytest.mark.parametrize(
    ("exprs", "expected"),
    [
        ([], (None, None)),
        (["ttft_p99<=800ms"], (800.0, None)),
        (["ttft_p99<=800ms", "tbt_p99<=0.1s", "tpot_mean<=90ms", "ttft_mean<=1s"], (800.0, 90.0)),
    ],
)
def test_deadlines_are_the_tightest_bounds(exprs: list[str], expected: tuple[float | None, float | None]) -> None:
    assert deadlines_of([parse_slo(expr) for expr in exprs]) == expected


@pytest.mark.parametrize("expr", ["tbt_p99<=1.1x", "normalized_latency_mean<=50ms"])
def test_what_is_no_deadline_is_refused(expr: str) -> None:
    with pytest.raises(ValueError, match="deadlines need bounds in ms"):
        deadlines_of([parse_slo(expr)])
