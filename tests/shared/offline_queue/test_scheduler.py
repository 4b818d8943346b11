"""Scheduler and pool against a real replica, message by message, without a bus in between."""

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import SUSPECT_FAILURES, OfflinePool
from shared.offline_queue.scheduler import MAX_PLAN_BYTES, Scheduler
from shared.process.memory import collect_seldom
from shared.protocol.codec import decode, encode
from shared.protocol.offline.requests import OfflineRequest
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import EndedRequest, PlanSource, StepPlan, StepStarted
from shared.replica.outputs import ended_request
from shared.replica.replica import Replica
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.registry import OFFLINE_ORDERS, OfflineOrderKnobs, make_offline_order
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.planning.mirror import ARRIVAL_GRACE_STEPS
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.shared.replica.factories import make_info

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
INFO = make_info()


def make_offline(number: int, prompt: int = 30, max_tokens: int = 10, first: int = 0) -> OfflineRequest:
    request_id = f"batch_1.{number}"
    sampling = SamplingParams(max_tokens=max_tokens, seed=number)
    generate = GenerateRequest(request_id, Kind.OFFLINE, list(range(first, first + prompt)), sampling, 0.0)
    return OfflineRequest(generate, "batch_1", number, f"custom-{number}", "m")


def make_pool(order: str, discarded: list[str], utility_ratio: float = 0.5) -> OfflinePool:
    made = make_offline_order(
        order, OfflineOrderKnobs(utility_ratio=utility_ratio), iter(random.Random(7).random, None)
    )
    return OfflinePool(FairShare(made), lambda: None, lambda _, ids: discarded.extend(ids))


class Peer:
    """An executor's loop, one step per call, with a scheduler that hears everything at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        order: str,
        policy: Policy,
        strategy: Strategy | None = None,
    ) -> None:
        info = make_info(strategy)
        self.policy = policy
        self.checks_pool = True  # after each step; a walk over all that waits
        self.replica = Replica(info.limits(), info.spec, tokenizer, info.strategy)
        self.engine = SimEngine(info.spec, LinearLatencyModel(0, 0, 0, 0, 0, 0, 0), 30.0)
        self.discarded: list[str] = []
        self.pool = make_pool(order, self.discarded)
        self.scheduler = Scheduler(info, self.pool, self.tuning, SystemClock())
        self.plan: StepPlan | None = None
        self.step = 0
        self.planned_steps = 0
        self.ended: list[EndedRequest] = []
        self.results: dict[str, list[int]] = {}

    def tuning(self) -> tuple[Policy, LatencyModel]:
        return self.policy, MODEL

    def arrive(self, request: GenerateRequest) -> None:
        self.replica.submit(request)
        self.scheduler.on_inbox(request)

    def run_step(self, plan_is_late: bool = False, plan_is_lost: bool = False) -> bool:
        plan, self.plan = self.plan, None
        late = plan if plan_is_late else None
        if plan_is_late or plan_is_lost:
            plan = None
        assert plan is None or plan.step == self.step
        batch = self.replica.begin(self.replica.schedule(plan, self.policy, MODEL), self.step)
        self.collect_ended()
        if not batch.sequences:
            self.say(idle=True)
            return False
        self.planned_steps += plan is not None
        self.say(idle=False)
        for request in late.admitted if late is not None else ():
            self.replica.submit(request)
        self.replica.finish(self.engine.execute(batch))
        self.collect_ended()
        self.step += 1
        self.replica.pool.check_integrity()
        if self.checks_pool:
            self.pool.check_integrity()
        return True

    def collect_ended(self) -> None:
        for ended in self.replica.take_ended():
            self.ended.append(ended_request(ended))
            if ended.sequence.kind is Kind.OFFLINE and ended.finish_reason is not FinishReason.ABORT:
                assert ended.sequence.request_id not in self.results, "ran twice"
                self.results[ended.sequence.request_id] = ended.sequence.output_token_ids

    def say(self, idle: bool, epoch: str = INFO.epoch) -> AbortRequests | None:
        source = PlanSource.IDLE if idle else PlanSource.PLAN
        (entries,), states = self.replica.in_flight() or [[]], self.replica.tell()
        ended, self.ended = self.ended, []
        free = self.replica.pool.num_free
        counters = self.replica.table.online_order.counters()
        cache = self.replica.pool.take_cache_changes()
        message = StepStarted(
            "executor-0", epoch, self.step, source, idle, entries, states, ended, free, counters, cache=cache
        )
        abort = self.scheduler.on_step(decode(encode(message), StepStarted))
        plans = self.scheduler.plan()
        self.plan = plans[0] if plans else None
        assert len(plans) <= 1
        return abort


MakePeer = Callable[[Policy], Peer]


@pytest.fixture(params=OFFLINE_ORDERS)
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_peer(tokenizer: Tokenizer, order: str) -> MakePeer:
    return lambda policy: Peer(tokenizer, order, policy)


@pytest.mark.parametrize("seed", range(6))
def test_every_offline_request_runs_exactly_once(make_peer: MakePeer, seed: int) -> None:
    rng = random.Random(seed)
    peer = make_peer(Policy(40.0))
    peer.pool.add([make_offline(n, rng.randint(1, 120), rng.randint(1, 40)) for n in range(40)])
    online = 0
    for turn in range(3000):
        if turn < 200 and rng.random() < 0.1:
            online += 1
            sampling = SamplingParams(max_tokens=rng.randint(1, 30), seed=turn)
            prompt = list(range(rng.randint(1, 150)))
            peer.arrive(GenerateRequest(f"on-{turn}", Kind.ONLINE, prompt, sampling, 0.0, "g"))
        chance = rng.random()
        peer.run_step(plan_is_late=chance < 0.1, plan_is_lost=chance > 0.95)
        for request_id in list(peer.results):
            if rng.random() < 0.3:  # the result is seen a while after the end
                peer.pool.discard([request_id])
        if len(peer.results) == 40 and not peer.replica.has_work:
            break
    assert set(peer.results) == {f"batch_1.{n}" for n in range(40)}
    assert peer.replica.totals.finished_online == online


def test_a_plan_is_ready_for_every_step_after_the_first(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(40.0))
    peer.pool.add([make_offline(n) for n in range(20)])
    peer.run_step()
    while peer.run_step():
        pass
    assert peer.planned_steps == peer.step > 10
    assert len(peer.results) == 20


def test_nothing_is_planned_where_nothing_is_to_be_done(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(40.0))
    peer.say(idle=True)
    assert peer.scheduler.plan() == []
    assert peer.scheduler.stats().plans == 0
    peer.pool.add([make_offline(0)])
    assert [len(plan.admitted) for plan in peer.scheduler.plan()] == [1]
    assert peer.scheduler.stats().plans >= 1


def test_an_executor_that_drains_gets_nothing_new_and_ends_what_it_has(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(40.0))
    peer.pool.add([make_offline(n) for n in range(20)])
    while not peer.results:
        peer.run_step()
    peer.scheduler.takes_requests = False
    peer.run_step()  # what the plan before has let in
    held = {state.request_id for state in peer.replica.tell()} | set(peer.results)
    while peer.run_step():
        pass
    assert set(peer.results) == held and 0 < len(held) < 20
    assert not peer.scheduler.plan()
    peer.scheduler.takes_requests = True
    (peer.plan,) = peer.scheduler.plan()
    while peer.run_step():
        pass
    assert len(peer.results) == 20


def test_suspects_run_one_at_a_time_beside_the_others(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n) for n in range(16)])
    suspects = {f"batch_1.{n}" for n in range(0, 16, 3)}
    for request_id in suspects:
        peer.pool.retry(request_id, SUSPECT_FAILURES)
    most_held = 0
    while peer.run_step() or len(peer.results) < 16:
        held = {state.request_id for state in peer.replica.tell()}
        assert len(held & suspects) <= 1
        most_held = max(most_held, len(held))
        peer.pool.discard(list(peer.results))
    assert most_held > 4


def test_the_next_suspect_runs_though_the_result_of_the_one_before_is_not_seen_yet(make_peer: MakePeer) -> None:
    """The executor says once that it has nothing to run."""
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n) for n in range(3)])
    for number in range(3):
        peer.pool.retry(f"batch_1.{number}", SUSPECT_FAILURES)
    peer.say(idle=True)
    while peer.plan is not None:
        while peer.run_step():
            assert len(peer.replica.tell()) <= 1
        peer.pool.discard(list(peer.results))
    assert len(peer.results) == 3


@pytest.fixture
def beside(make_peer: MakePeer) -> Peer:
    """A peer beside whose online request the next plan admits three offline ones."""
    peer = make_peer(Policy(40.0))
    peer.arrive(GenerateRequest("on", Kind.ONLINE, [5] * 10, SamplingParams(max_tokens=20), 0.0, "g"))
    peer.run_step()
    peer.pool.add([make_offline(n) for n in range(3)])
    peer.run_step()
    assert entering(peer) == {f"batch_1.{n}" for n in range(3)}
    return peer


def entering(peer: Peer) -> set[str]:
    """What the next plan brings."""
    assert peer.plan is not None
    return {each.request_id for each in peer.plan.admitted}


def test_what_a_late_plan_brings_runs_in_the_step_after(beside: Peer) -> None:
    admitted = entering(beside)
    beside.run_step(plan_is_late=True)
    assert entering(beside) == set() and beside.pool.num_waiting == 0
    assert beside.plan is not None and admitted < {entry.request_id for entry in beside.plan.entries}
    beside.run_step()
    assert {request.request_id for request in beside.replica.table.running(Kind.OFFLINE).values()} == admitted


def test_offline_requests_run_where_every_plan_is_late(beside: Peer) -> None:
    while "on" in beside.replica.table:
        beside.run_step(plan_is_late=True)
    assert beside.planned_steps < 3 and len(beside.results) == 3


def test_what_a_lost_plan_would_have_brought_waits_again(beside: Peer) -> None:
    admitted = entering(beside)
    beside.run_step(plan_is_lost=True)
    for _ in range(ARRIVAL_GRACE_STEPS):
        assert entering(beside) == set()
        beside.run_step()
    assert entering(beside) == admitted


def test_an_executor_that_waits_has_lost_what_did_not_come(beside: Peer) -> None:
    admitted = entering(beside)
    beside.replica.abort(["on"])
    beside.scheduler.on_inbox(AbortRequests(["on"]))
    assert not beside.run_step(plan_is_lost=True)
    assert entering(beside) == admitted


def test_a_lost_executor_gives_everything_back(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n) for n in range(6)])
    for _ in range(4):
        peer.run_step()
    assert peer.pool.num_waiting < 6
    peer.pool.release("executor-0")
    assert {request.request_id for request in peer.pool.in_order()} == {f"batch_1.{n}" for n in range(6)}
    peer.pool.check_integrity()


@pytest.mark.parametrize(
    ("name", "utility_ratio", "ordered"),
    [
        ("fcfs", 0.5, [0, 1, 2, 3, 4, 5, 6]),
        ("psm", 0.5, [0, 3, 6, 1, 4, 2, 5]),
        ("psm-fair", 1.0, [0, 3, 6, 1, 4, 2, 5]),
        ("psm-fair", 0.0, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_what_an_executor_lost_returns_to_its_old_place(name: str, utility_ratio: float, ordered: list[int]) -> None:
    pool = make_pool(name, [], utility_ratio)
    requests = [make_offline(n, prompt=40, first=n % 3) for n in range(7)]
    pool.add(requests)
    ids = [f"batch_1.{n}" for n in ordered]
    taken = [pool.take(request_id, "executor-0") for request_id in ids[:4]]
    assert taken == [requests[n].request for n in ordered[:4]]
    assert [request.request_id for request in pool.in_order()] == ids[4:]
    pool.settle("executor-0", held=[ids[1]], ended=[])
    assert [request.request_id for request in pool.in_order()] == [ids[0], *ids[2:]]
    pool.release("executor-0")
    assert [request.request_id for request in pool.in_order()] == ids
    pool.check_integrity()


class Pupil(FcfsOrder):
    """Writes down what it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt: dict[str, int] = {}

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        assert request_id in self._known
        self.learnt[request_id] = num_output_tokens


def test_the_order_learns_how_long_answers_were(make_peer: MakePeer) -> None:
    peer, pupil = make_peer(Policy(200.0)), Pupil()
    peer.pool = OfflinePool(FairShare(pupil), lambda: None, lambda _, ids: None)
    peer.scheduler = Scheduler(INFO, peer.pool, peer.tuning, SystemClock())
    peer.pool.add([make_offline(n, max_tokens=3 + n) for n in range(4)])
    peer.pool.add([make_offline(4, prompt=10**6)])  # ends without an answer
    peer.say(idle=True)
    while peer.run_step():
        pass
    assert pupil.learnt == {request_id: len(output) for request_id, output in peer.results.items() if output}
    assert len(pupil.learnt) == 4
    peer.pool.discard(list(peer.results))
    peer.pool.learn("batch_1.0", 7)  # unknown by now
    assert pupil.learnt["batch_1.0"] < 7


def test_a_length_is_known_where_nothing_else_ends_a_request() -> None:
    pool = make_pool("fcfs", [])
    given: list[dict[str, Any]] = [
        {"ignore_eos": True},
        {},
        {"ignore_eos": True, "stop": ("x",)},
        {"ignore_eos": True, "stop_token_ids": (7,)},
        {"ignore_eos": True, "grammar": "root ::= 'a'"},
    ]
    for number, each in enumerate(given):
        pool.enter(replace(make_offline(number).request, sampling=SamplingParams(10, **each)))
    assert [request.ends_at_limit for request in pool.in_order()] == [True, False, False, False, False]


def test_the_next_plan_reads_the_same_order(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n, first=n % 5) for n in range(30)])
    ids = [request.request_id for request in peer.pool.in_order()]
    assert [request.request_id for request in peer.pool.in_order()] == ids
    peer.say(idle=True)
    assert peer.plan is not None
    admitted = [generate.request_id for generate in peer.plan.admitted]
    assert admitted == ids[: len(admitted)] and len(admitted) > 1


def test_an_executor_that_still_runs_them_is_recognized_after_a_restart(make_peer: MakePeer, order: str) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n, max_tokens=30) for n in range(4)])
    for _ in range(4):
        peer.run_step()
    held = [state.request_id for state in peer.replica.tell()]
    assert held
    peer.pool = make_pool(order, peer.discarded)
    peer.pool.add([make_offline(n, max_tokens=30) for n in range(4) if f"batch_1.{n}" not in peer.results])
    peer.scheduler = Scheduler(INFO, peer.pool, peer.tuning, SystemClock())
    assert peer.say(idle=True) is None
    assert peer.plan is not None and not {g.request_id for g in peer.plan.admitted} & set(held)
    while peer.run_step():
        pass
    assert len(peer.results) == 4


def test_a_scheduler_that_comes_later_learns_what_the_prefix_cache_has(tokenizer: Tokenizer) -> None:
    """The same prompt for all, so that a plan has its one block that is left of each further request."""
    peer = Peer(tokenizer, "fcfs", Policy(200.0))
    peer.pool.add([make_offline(1, prompt=50)])
    peer.say(idle=True)
    while peer.run_step():
        pass
    peer.pool.discard(["batch_1.1"])
    peer.pool.add([make_offline(2, prompt=50)])
    assert not peer.scheduler.needs_cache and planned_tokens(peer) == {"batch_1.2": 2}
    peer.pool = make_pool("fcfs", peer.discarded)
    peer.scheduler = Scheduler(INFO, peer.pool, peer.tuning, SystemClock())
    peer.pool.add([make_offline(3, prompt=50)])
    assert planned_tokens(peer) == {"batch_1.3": 50} and peer.scheduler.needs_cache
    peer.scheduler.on_cache(peer.replica.pool.cache_snapshot())
    assert planned_tokens(peer) == {"batch_1.3": 2} and not peer.scheduler.needs_cache


def planned_tokens(peer: Peer) -> dict[str, int]:
    """What the next plan computes of those that enter by it."""
    peer.say(idle=True)
    assert peer.plan is not None
    entering = {request.request_id for request in peer.plan.admitted}
    return {e.request_id: e.num_scheduled_tokens for e in peer.plan.entries if e.request_id in entering}


def test_what_nobody_asked_for_is_stopped(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.replica.submit(make_offline(7).request)
    peer.run_step()
    assert peer.say(idle=False) == AbortRequests(["batch_1.7"])


def test_a_request_held_by_two_executors_is_stopped_on_the_second(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(1)])
    peer.pool.take("batch_1.1", "executor-1")
    peer.replica.submit(make_offline(1).request)
    assert peer.say(idle=True) == AbortRequests(["batch_1.1"])


def test_cancelled_requests_leave_the_pool_and_their_executor(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(n) for n in range(40)])
    for _ in range(2):
        peer.run_step()
    peer.pool.discard([f"batch_1.{n}" for n in range(40)])
    assert len(peer.pool) == 0 and peer.discarded
    assert {state.request_id for state in peer.replica.tell()} <= set(peer.discarded)


def test_another_epoch_is_not_heard(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(200.0))
    peer.pool.add([make_offline(1)])
    assert peer.say(idle=True, epoch="epoch-0") is None
    assert peer.plan is None


def test_without_a_budget_no_offline_work_is_planned(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(0.0, offline_enabled=False))
    peer.pool.add([make_offline(1)])
    peer.say(idle=True)
    assert peer.plan is None
    peer.policy = Policy(100.0)
    (plan,) = peer.scheduler.plan()
    assert [g.request_id for g in plan.admitted] == ["batch_1.1"]
    assert peer.scheduler.plan() == []


def test_at_a_fixed_rate_one_enters_at_a_time(tokenizer: Tokenizer) -> None:
    peer = Peer(tokenizer, "fcfs", Policy(200.0), Strategy.of("hygen-star", offline_qps=1e-6))
    peer.pool.add([make_offline(n) for n in range(3)])
    peer.say(idle=True)
    while peer.run_step():
        pass
    assert list(peer.results) == ["batch_1.0"]
    assert peer.pool.num_waiting == 2


def test_plans_are_not_interrupted_by_walks_over_all_that_waits(make_peer: MakePeer) -> None:
    thresholds = gc.get_threshold()
    collect_seldom()
    try:
        walks = num_collections()
        peer = make_peer(Policy(40.0))
        peer.checks_pool = False
        peer.pool.add([make_offline(n) for n in range(2000)])
        for _ in range(100):
            peer.run_step()
        assert peer.planned_steps > 90
        assert num_collections() == walks
        peer.pool.check_integrity()
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def num_collections() -> int:
    """Beyond those of the youngest objects."""
    return sum(generation["collections"] for generation in gc.get_stats()[1:])


def test_a_plan_lets_clients_take_turns(tokenizer: Tokenizer) -> None:
    peer = Peer(tokenizer, "fcfs", Policy(40.0), Strategy(online_order="vtc"))
    flood = [f"flood-{n}" for n in range(12)]
    for request_id in flood:
        peer.arrive(GenerateRequest(request_id, Kind.ONLINE, [5] * 40, SamplingParams(10), 0.0, "g", client_id="flood"))
    peer.run_step()
    peer.arrive(GenerateRequest("light", Kind.ONLINE, [6] * 10, SamplingParams(10), 0.0, "g", client_id="light"))
    peer.run_step()
    assert peer.plan is not None
    waiting = [request_id for request_id in peer.replica.table.waiting(Kind.ONLINE) if request_id in flood]
    entering = [entry.request_id for entry in peer.plan.entries if entry.request_id in ("light", *waiting)]
    assert entering[0] == "light"
    while peer.run_step():
        pass
    assert peer.replica.totals.finished_online == 13


def test_what_can_never_fit_is_refused_and_holds_up_nobody(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(40.0))
    huge = make_offline(1, prompt=48 * 16 + 1)
    peer.pool.add([huge, *(make_offline(n) for n in range(2, 6))])
    peer.say(idle=True)
    while peer.run_step() or peer.plan is not None:
        pass
    (refused,) = peer.scheduler.take_refused()
    assert refused.sequence.request_id == "batch_1.1"
    assert refused.error == "769 tokens leave no room in the model's context of 512"
    assert set(peer.results) == {f"batch_1.{n}" for n in range(2, 6)}
    assert peer.pool.num_waiting == 0


def test_what_another_executor_can_hold_is_left_to_it(make_peer: MakePeer) -> None:
    peer = make_peer(Policy(40.0))
    peer.scheduler = Scheduler(INFO, peer.pool, peer.tuning, SystemClock(), lambda request: "")
    peer.pool.add([make_offline(1, prompt=48 * 16 + 1), *(make_offline(n) for n in range(2, 6))])
    peer.say(idle=True)
    while peer.run_step() or peer.plan is not None:
        pass
    assert peer.scheduler.take_refused() == []
    assert set(peer.results) == {f"batch_1.{n}" for n in range(2, 6)}
    assert [request.request_id for request in peer.pool.in_order()] == ["batch_1.1"]


@pytest.mark.parametrize("prompt", [48 * 16 + 1, 8])
def test_no_plan_grows_with_the_pool(make_peer: MakePeer, prompt: int) -> None:
    """Neither by what is too large for the executor nor by what is large beside its prompt."""
    peer = make_peer(Policy(1e9))
    peer.checks_pool = False
    requests = [make_offline(n, prompt) for n in range(600)]
    large = SamplingParams(2, stop=("x" * 400_000,))
    peer.pool.add([replace(each, request=replace(each.request, sampling=large)) for each in requests[:40]])
    peer.pool.add(requests[40:])
    refused, longest = [], 0
    peer.say(idle=True)
    while len(refused) + len(peer.results) < 600:
        longest = max(longest, len(encode(peer.plan)) if peer.plan is not None else 0)
        if not peer.run_step():
            peer.plan = next(iter(peer.scheduler.plan()), None)
        refused += peer.scheduler.take_refused()
    peer.pool.check_integrity()
    assert longest < 1.5 * MAX_PLAN_BYTES
    assert bool(refused) == (prompt > 8) and peer.pool.num_waiting == 0


def test_the_pool_knows_the_prompts_of_what_waits() -> None:
    pool = make_pool("fcfs", [])
    pool.add([make_offline(1, prompt=5, first=7)])
    assert pool.prompt("batch_1.1") == pack_tokens([7, 8, 9, 10, 11])
    assert pool.prompt("batch_1.2") is None


def test_an_order_sees_the_executor_and_the_step_so_far(tokenizer: Tokenizer) -> None:
    class Watching(FcfsOrder):
        def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
            seen.append((view.reader, view.num_free_blocks, view.model, view.features.prefill_tokens))
            return super().in_order(view, turn)

    seen: list[tuple[str | None, int, LatencyModel | None, int]] = []
    peer = Peer(tokenizer, "fcfs", Policy())
    pool = OfflinePool(FairShare(Watching()), lambda: None, lambda _, __: None)
    peer.scheduler = Scheduler(INFO, pool, peer.tuning, SystemClock())
    pool.add([make_offline(1)])
    peer.arrive(GenerateRequest("online", Kind.ONLINE, list(range(20)), SamplingParams(max_tokens=5), 0.0))
    peer.say(idle=True)
    assert seen == [("executor-0", 46, MODEL, 20)]


def told(message: StepStarted, *states: Request) -> StepStarted:
    return replace(message, states=list(states), idle=True)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("num_blocks", [0, 1])
def test_no_request_is_twice_in_a_plan_whatever_an_executor_says(
    make_peer: MakePeer, kind: Kind, num_blocks: int
) -> None:
    """It says that it holds one that waits in the pool, or an online one that is on its way, as of either kind."""
    peer = make_peer(Policy(40.0))
    peer.pool.add([make_offline(0)])
    online = GenerateRequest("on", Kind.ONLINE, [5, 6, 7], SamplingParams(max_tokens=4), 0.0, "g")
    peer.scheduler.on_inbox(online)
    message = StepStarted("executor-0", INFO.epoch, 0, PlanSource.IDLE, True, [], [], [], 100, num_fresh=1)
    for request_id in ("batch_1.0", "on"):
        forged = Request(request_id, kind, num_tokens=20, max_total_tokens=40, num_blocks=num_blocks)
        peer.scheduler.on_step(told(message, forged))
        plans = [[entry.request_id for entry in plan.entries] for plan in peer.scheduler.plan()]
        assert any(plans) and all(sorted(set(ids)) == sorted(ids) for ids in plans)
        peer.scheduler.on_step(told(message, forged))
        peer.scheduler.plan()


def test_a_step_message_with_a_request_twice_does_not_parse() -> None:
    states = [Request("a", kind, num_tokens=2, max_total_tokens=4) for kind in Kind]
    message = StepStarted("executor-0", INFO.epoch, 0, PlanSource.IDLE, True, [], states[:1], [], 100)
    data = encode(message)
    assert decode(data, StepStarted) == message
    twice = msgspec.to_builtins(message) | {"states": msgspec.to_builtins(states)}
    with pytest.raises(msgspec.ValidationError, match="one state"):
        decode(encode(twice), StepStarted)
