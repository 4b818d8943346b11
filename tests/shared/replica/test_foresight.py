"""Plans that run as they are, since all came as the scheduler foresaw: reconciling them would change nothing."""

import math
import random
from collections.abc import Callable, Container
from dataclasses import replace as changed

import pytest

from shared.latency.linear import LinearLatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import Scheduler
from shared.protocol.codec import decode, encode
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.replica.ahead import Running
from shared.replica.engine import StepResult
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, ONLINE, Kind
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import PRESETS, Strategy
from tests.shared.replica.factories import make_info
from tests.shared.replica.test_replica import MODEL

EOS = 2


class Foreseen:
    """An executor and its clock, whose scheduler hears all at once. Each plan that is taken as it is has to be what
    reconciling it gives."""

    def __init__(self, strategy: Strategy, num_blocks: int = 48, max_num_seqs: int = 8, num_tokens: int = 64) -> None:
        info = make_info(
            strategy, max_num_seqs, num_tokens, num_blocks=num_blocks, num_host_slots=64, is_interruptible=True
        )
        self.now_ms = 0.0
        self.model = MODEL
        self.policy = strategy.policy(40.0)
        self.replica = Replica(info.limits(), info.spec, None, strategy, now_ms=lambda: self.now_ms)
        self.planner = StepPlanner(self.replica, info.executor_id, info.epoch, 1)
        order = strategy.make_offline_order(iter(random.Random(1).random, None))
        self.pool = OfflinePool(FairShare(order), lambda: None, lambda _, __: None)
        self.scheduler = Scheduler(info, self.pool, lambda: (self.policy, self.model), self)
        self.plan: StepPlan | None = None
        self.running: Running = []
        self.plans: list[StepPlan] = []  # that came in time
        self.kept: list[bool] = []  # as they were
        self._latency_ms = 0.0
        self._planned_by = self.policy, self.model

    def monotonic_s(self) -> float:
        return self.now_ms / 1e3

    def unix_s(self) -> float:
        return self.now_ms / 1e3

    def arrive(self, *requests: GenerateRequest) -> None:
        """Offline ones at the pool."""
        for request in requests:
            if request.kind is OFFLINE:
                self.pool.enter(request)
            else:
                self.replica.submit(request)
                self.scheduler.on_inbox(request)

    def abort(self, request_id: str) -> None:
        self.pool.discard([request_id])
        self.replica.abort([request_id])
        self.scheduler.on_inbox(AbortRequests([request_id]))

    def schedule(self) -> Schedule:
        """Of the next step, which is to be asked for once."""
        plan, self.plan = self.plan, None
        schedule = self.replica.schedule(plan, self.policy, self.model)
        if plan is None:
            return schedule
        self.plans.append(plan)
        self.kept.append(schedule.entries is plan.entries)
        if self.kept[-1]:
            made = self.replica.reconcile(plan.entries, plan.preempted, self.policy, self.model)
            assert (made.entries, made.preempted, made.num_dropped) == (plan.entries, [], 0)
            assert (schedule.preempted, schedule.num_dropped) == ([], 0)
            assert schedule.gives_way == made.gives_way
            if self._planned_by == (self.policy, self.model):
                assert schedule.share == made.share and schedule.latency_ms == pytest.approx(made.latency_ms)
        return schedule

    def begin(self, is_late: bool = False) -> bool:
        """A step starts, or none can; the plan of the one after it comes, unless it ``is_late``."""
        schedule = self.schedule()
        self.running = self.replica.allocate(schedule)
        if not self.running and self.replica.has_work:
            schedule = self.replica.schedule(None, self.policy, self.model)
            self.running = self.replica.allocate(schedule)
        self._latency_ms = schedule.latency_ms
        self._take_ended()
        if not self.running:
            self.planner.rest()
        message = self.planner.start(PlanSource.PLAN) if self.running else self.planner.idle_message()
        abort = self.scheduler.on_step(decode(encode(message), StepStarted))
        if abort is not None:
            self.replica.abort(abort.request_ids)
        self._planned_by = self.policy, self.model
        for plan in self.scheduler.plan():
            self.planner.take_plan(plan, is_late)
            self.plan = None if is_late else plan
        return bool(self.running)

    def end(self, late_ms: float = 0.0, ends: Container[str] = ()) -> None:
        """The step has taken as long as was planned, and ``late_ms``; the text of those in ``ends`` ends there."""
        self.now_ms += self._latency_ms + late_ms
        sampled = {
            sequence.request_id: EOS if sequence.request_id in ends else 7
            for sequence, count in self.running
            if sequence.request.num_computed_tokens + count == sequence.request.num_tokens
        }
        self.replica.finish(StepResult(sampled, self._latency_ms + late_ms))
        self._take_ended()
        self.replica.pool.check_integrity()

    def step(self) -> bool:
        """One that runs as planned; whether it has run."""
        if self.begin():
            self.end()
            return True
        return False

    def _take_ended(self) -> None:
        self.pool.discard([each.sequence.request_id for each in self.planner.take_ended()])


def request_of(
    request_id: str, kind: Kind = OFFLINE, prompt: int = 20, max_tokens: int = 30, first: int = 0, **changes: object
) -> GenerateRequest:
    sampling = SamplingParams(**({"max_tokens": max_tokens, "ignore_eos": True} | changes))  # type: ignore[arg-type]
    tokens = [100 * first + position % 90 + 3 for position in range(prompt)]
    return GenerateRequest(request_id, kind, tokens, sampling, 0.0, "gateway" if kind is ONLINE else "")


STRATEGIES = {
    **PRESETS,
    "vtc": Strategy(online_order="vtc"),
    "keep-resident": Strategy(kv_sharing="keep-resident"),
    "reserve": Strategy(kv_reserve="burst", reserve_window_s=1.0),
    "multiple": Strategy(batch_multiple=16),
    "kv-aware": Strategy(packing="kv-aware", kv_eviction="online-first"),
}
for name in ("sarathi++", "hygen-star", "online-only", "blendserve"):
    del STRATEGIES[name]  # packed as hygen is


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("seed", range(2))
def test_a_plan_that_is_taken_as_it_is_is_what_reconciling_it_gives(name: str, seed: int) -> None:
    """Whatever happens between the two: the rig compares them."""
    rng, strategy = random.Random(f"{seed}-{name}"), STRATEGIES[name]
    rig = Foreseen(strategy, rng.choice([16, 32]), rng.choice([4, 8]))
    for number in range(100):
        if rng.random() < 0.25:
            rig.arrive(random_request(number, rng))
        if rng.random() < 0.1:
            is_tolerant = strategy.uses_latency_budget and rng.random() < 0.5
            rig.policy = strategy.policy(*((0.0, True, 0.0, 0.2) if is_tolerant else (rng.choice([8.0, 20.0, 1e9]),)))
        if not rig.begin(is_late=rng.random() < 0.05):
            continue
        held, what = [request.request_id for request in rig.replica.table], rng.random()
        if what < 0.05:
            rig.abort(rng.choice(held))
        elif what < 0.1:
            rig.arrive(random_request(1000 + number, rng))
        if what > 0.95:
            rig.replica.fail("bad step")
        elif what > 0.9 and rig.replica.is_interruptible:
            rig.replica.retract()
        else:
            ends = [request_id for request_id in held if rng.random() < 0.03]
            rig.end(late_ms=rng.choice([0.0, 0.0, 1.0]), ends=ends)
    assert any(rig.kept) == keeps_plans(strategy) and not all(rig.kept)


def random_request(number: int, rng: random.Random) -> GenerateRequest:
    """Many begin alike."""
    kind = rng.choice([ONLINE, OFFLINE])
    lengths = rng.randint(1, 70), rng.randint(1, 20)
    changes = {"ignore_eos": rng.random() < 0.8, "n": 2 if kind is OFFLINE and rng.random() < 0.1 else 1}
    return request_of(f"b.{number}", kind, *lengths, first=rng.randint(0, 3), **changes)


def keeps_plans(strategy: Strategy) -> bool:
    return packing_named(strategy.packing).keeps_plans and not strategy.sharing.pauses


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "reserve"])
def test_where_nothing_else_happens_every_plan_runs_as_it_is(name: str) -> None:
    """Where a packing goes by the time, but for those by which somebody enters."""
    strategy = STRATEGIES[name]
    rig = Foreseen(strategy)
    rig.arrive(*(request_of(f"on-{n}", ONLINE, 10 + n, 20 + n, first=n) for n in range(3)))
    rig.arrive(*(request_of(f"b.{n}", OFFLINE, 30 + n, 10 + n, first=10 + n) for n in range(6)))
    while rig.step() or rig.plan is not None:
        pass
    uses_time = packing_named(strategy.packing).uses_time
    expected = [keeps_plans(strategy) and not (uses_time and plan.admitted) for plan in rig.plans]
    assert rig.kept == expected and len(rig.kept) > 20


def planned(strategy: Strategy | None = None, *requests: GenerateRequest, **rig: int) -> Foreseen:
    """These run, and a plan of the next step has come."""
    made = Foreseen(strategy or Strategy(), **rig)
    made.arrive(*requests)
    while made.plan is None or len(made.kept) < 3:
        made.step()
    return made


def is_kept(rig: Foreseen) -> bool:
    """The plan that has come."""
    num_before = len(rig.kept)
    rig.schedule()
    assert len(rig.kept) == num_before + 1
    return rig.kept[-1]


@pytest.mark.parametrize("num_waiting", [0, 1])
def test_who_comes_changes_nothing_where_another_stays_waiting(num_waiting: int) -> None:
    """Once a scheduler has been told of who came, nothing has come since."""
    held = [request_of(f"on-{n}", ONLINE, first=n) for n in range(2 + num_waiting)]
    for comes in (False, True):
        rig = planned(None, *held, max_num_seqs=3 - num_waiting)
        assert rig.begin()
        if comes:
            rig.arrive(request_of("new", ONLINE, first=9))
        rig.end()
        assert rig.begin() and rig.kept[-1] is (not comes or bool(num_waiting))
        rig.end()
        assert {each.request_id for each, _ in rig.running} == {"on-0", "on-1"} | (
            {"new"} if comes and not num_waiting else set()
        )
        assert is_kept(rig)


def test_those_who_wait_by_their_clients_are_looked_at_anew() -> None:
    """What is returned meanwhile may change whose turn it is."""
    for order, max_num_seqs, expected in (("vtc", 2, False), ("vtc", 3, True), ("fcfs", 2, True)):
        rig = Foreseen(Strategy(online_order=order), max_num_seqs=max_num_seqs)
        rig.arrive(*(request_of(f"on-{n}", ONLINE, first=n) for n in range(3)))
        for _ in range(3):
            rig.step()
        assert is_kept(rig) is expected


def test_who_leaves_makes_room_for_those_behind() -> None:
    rig = Foreseen(Strategy(), num_blocks=12)
    rig.arrive(request_of("on", ONLINE, 60), request_of("large", ONLINE, 150, first=1))
    rig.arrive(request_of("small", ONLINE, first=2))
    for _ in range(2):
        rig.step()
    rig.begin()
    assert rig.kept[-1] and rig.plan is not None and [each.request_id for each in rig.plan.entries] == ["on"]
    rig.abort("large")
    rig.end()
    assert [each.request_id for each in rig.schedule().entries] == ["on", "small"]


EXACT = LinearLatencyModel(4.0, 0.125, 1 / 1024, 0.0, 0.0, 0.125, 0.5)  # sums without rounding


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda policy, ms: changed(policy, latency_budget_ms=ms), True),
        (lambda policy, ms: changed(policy, latency_budget_ms=ms - 2.0**-20), False),
        (lambda policy, ms: changed(policy, latency_budget_ms=math.inf), True),
        (lambda policy, ms: changed(policy, offline_enabled=False), False),
        (lambda policy, ms: changed(policy, latency_budget_ms=math.inf, offline_enabled=False), False),
        (lambda policy, ms: changed(policy, latency_budget_ms=0.0, tolerance=0.05), False),
    ],
)
def test_a_budget_that_changes_matters_to_plans_with_offline_work(
    change: Callable[[Policy, float], Policy], expected: bool
) -> None:
    online, offline = request_of("on", ONLINE, first=1), request_of("b.1")
    for requests in ([online, offline], [online]):
        rig = Foreseen(Strategy())
        rig.model = EXACT
        rig.arrive(*requests)
        for _ in range(3):
            rig.step()
        assert rig.plan is not None and len(rig.plan.entries) == len(requests)
        rig.policy = change(rig.policy, rig.plan.latency_ms)
        assert is_kept(rig) is (expected or requests == [online])


def test_a_model_that_changes_matters_to_plans_with_offline_work() -> None:
    for factor, expected in ((1.5, True), (50.0, False)):
        rig = planned(None, request_of("on", ONLINE, first=1), request_of("b.1"))
        rig.model = MODEL.scaled(factor)
        assert is_kept(rig) is expected


def test_with_nobody_online_a_plan_is_held_to_the_budget_of_an_idle_executor() -> None:
    rig = planned(None, request_of("b.1"), request_of("b.2", first=1))
    rig.policy = changed(rig.policy, latency_budget_ms=1.0)
    assert is_kept(rig), "as the cheapest step takes at least, twice"


def test_under_a_tolerance_offline_work_runs_as_planned_where_it_is_saved_for() -> None:
    """And else what the credit does not pay for is dropped, which the rig sees."""
    rig = Foreseen(Strategy())
    rig.policy = Strategy().policy(0.0, tolerance=0.2)
    rig.arrive(request_of("on", ONLINE, 20, 200), request_of("b.1", max_tokens=90, first=1))
    num_kept = 0
    while num_kept < 5:
        rig.step()
        num_kept += bool(rig.kept) and rig.kept[-1] and len(rig.plans[-1].entries) == 2
    while rig.plan is None or len(rig.plan.entries) == 1:
        rig.step()
    rig.policy = Strategy().policy(5.0)
    assert not is_kept(rig), "no credit pays for what goes by a budget"


@pytest.mark.parametrize("late_ms", [0.0, 1.0])
def test_a_packing_that_goes_by_the_time_keeps_plans_for_just_that(late_ms: float) -> None:
    for packing in ("kv-aware", "two-phase"):
        rig = planned(Strategy(packing=packing), request_of("on", ONLINE))
        assert rig.begin()
        rig.end(late_ms)
        assert is_kept(rig) is (not late_ms or packing == "two-phase")


def test_where_room_is_left_for_a_burst_who_enters_is_looked_at_anew() -> None:
    for strategy in (Strategy(), STRATEGIES["reserve"]):
        rig = planned(strategy, request_of("on", ONLINE, 40), request_of("large", ONLINE, 200, max_tokens=4, first=1))
        while "large" in rig.replica.table:
            rig.step()
        assert bool(rig.replica.num_reserved_blocks) is (strategy.kv_reserve != "none")
        rig.step()
        assert rig.kept[-1]
        rig.arrive(request_of("b.1", first=2))
        rig.step()
        assert rig.plan is not None and rig.plan.admitted
        assert is_kept(rig) is (strategy.kv_reserve == "none")


def test_nothing_is_foreseen_before_a_scheduler_was_told() -> None:
    """Though as many blocks are free as it could think: none."""
    rig = Foreseen(Strategy(), num_blocks=2)
    admitted = request_of("b.1", max_tokens=5)
    for num_tokens in (20, 1):
        entries = [ScheduledRequest("b.1", OFFLINE, num_tokens)]
        rig.plan = StepPlan("executor-0", "epoch-1", 0, entries, [admitted], [], 1.0)
        rig.running = rig.replica.allocate(rig.schedule())
        rig.end()
    assert rig.kept == [False, False]


@pytest.mark.parametrize(
    ("length", "comes", "ends", "expected"),
    [(40, False, False, True), (100, False, False, False), (40, True, False, False), (40, False, True, False)],
    ids=["whole", "a part of it", "beside one that comes", "of somebody who ends"],
)
def test_what_a_prompt_finds_was_foreseen_where_others_hold_all_of_it(
    length: int, comes: bool, ends: bool, expected: bool
) -> None:
    """And where it is the rest of the prompt that is computed."""
    rig = Foreseen(Strategy(), max_num_seqs=2)
    rig.arrive(request_of("on", ONLINE, 40, max_tokens=9 if ends else 30), request_of("other", ONLINE, 9, 9, first=5))
    rig.step()
    rig.arrive(request_of("alike", ONLINE, length), request_of("waits", ONLINE, first=7))
    while rig.begin() and (rig.plan is None or "alike" not in [each.request_id for each in rig.plan.entries]):
        rig.end()
    if comes:
        rig.arrive(request_of("new", ONLINE, first=8))
    rig.end()
    assert ("on" not in rig.replica.table) is ends and rig.replica.table.waiting(ONLINE)["alike"]
    assert is_kept(rig) is expected


def test_a_prompt_that_fails_was_not_foreseen_though_as_many_blocks_are_free_as_were() -> None:
    """It loses as many as another, who ends, leaves to who shares them. The rig gives its second part no scores to go
    on from."""
    rig = Foreseen(Strategy())
    rig.arrive(request_of("ends", ONLINE, 81, max_tokens=6, first=1))
    for _ in range(4):
        rig.step()
    rig.arrive(request_of("shares", ONLINE, 81, first=1))
    rig.step()
    rig.arrive(request_of("beside", ONLINE, 50, first=2), request_of("fails", ONLINE, 200, prompt_logprobs=1))
    rig.step()
    lost = rig.replica.table.running(ONLINE)["fails"]
    assert 0 < lost.num_computed_tokens < 16, "nothing of it can be found"
    rig.step()
    assert "ends" not in rig.replica.table and lost.was_admitted and not lost.is_running
    assert not is_kept(rig)
