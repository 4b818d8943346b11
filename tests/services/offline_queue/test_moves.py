"""The pool and its schedulers while requests move between executors, which are played here message by message."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from msgspec.structs import replace

from services.offline_queue.attached import Attached, AttachedExecutors
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import Scheduler
from shared.protocol.codec import decode, encode
from shared.protocol.handover import Place, Taken
from shared.protocol.requests import AbortRequests
from shared.protocol.sampling import FinishReason
from shared.protocol.steps import EndedRequest, PlanSource, StepPlan, StepStarted
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.offline_queue.test_scheduler import make_offline
from tests.shared.replica.factories import make_info

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
BLOCK, NUM_BLOCKS = 16, 48
LENGTH = FinishReason.LENGTH
REQUEST_IDS = [f"batch_1.{number}" for number in range(40)]
EXECUTORS = ("executor-0", "executor-1", "executor-2")


@dataclass
class Executor:
    """Counts tokens. What it gives it keeps until it hears that it was taken."""

    executor_id: str
    role: Role
    epoch: str = "epoch-1"
    step: int = 0
    held: dict[str, Request] = field(default_factory=dict)
    given: dict[str, Executor] = field(default_factory=dict)  # to whom, as far as it has not heard that they are there
    aborting: set[str] = field(default_factory=set)
    ended: list[EndedRequest] = field(default_factory=list)
    plan: StepPlan | None = None
    told: deque[tuple[int, StepStarted]] = field(default_factory=deque)  # and not handled yet
    numbers: Iterator[int] = field(default_factory=count)  # of messages, in the order in which they arrive
    entered: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[str, FinishReason]] = field(default_factory=Counter)

    @property
    def place(self) -> Place:
        return Place(self.executor_id, self.epoch)

    @property
    def num_free(self) -> int:
        return NUM_BLOCKS - sum(request.num_blocks for request in self.held.values())

    def run_step(self) -> None:
        plan, self.plan = self.plan, None
        entries: list[ScheduledRequest] = []
        if plan is not None and plan.step == self.step:
            for generate in plan.admitted:
                total = len(generate.prompt_token_ids) + generate.sampling.max_tokens
                request = Request(generate.request_id, Kind.OFFLINE, len(generate.prompt_token_ids), total)
                self.held.setdefault(generate.request_id, request)
                self.entered[generate.request_id] += 1
            entries = [entry for entry in plan.entries if self.has_blocks_for(entry)]
        for request_id in {} if entries else list(self.held):  # by itself
            request = self.held[request_id]
            entry = ScheduledRequest(request_id, Kind.OFFLINE, request.num_remaining_tokens)
            entries += [entry] if self.has_blocks_for(entry) else []
        self.tell(entries)
        for entry in entries:
            self.finish(self.held[entry.request_id], entry.num_scheduled_tokens)

    def has_blocks_for(self, entry: ScheduledRequest) -> bool:
        request = self.held.get(entry.request_id)
        if request is None or request.is_in_flight:
            return False
        num_tokens = min(entry.num_scheduled_tokens, request.num_remaining_tokens)
        new_blocks = request.num_new_blocks(num_tokens, BLOCK)
        if num_tokens < entry.num_scheduled_tokens or new_blocks > self.num_free:
            return False
        request.num_blocks += new_blocks
        request.num_in_flight_tokens = num_tokens
        return True

    def finish(self, request: Request, num_tokens: int) -> None:
        request.num_in_flight_tokens = 0
        request.num_computed_tokens += num_tokens
        request.was_admitted = True
        if request.num_remaining_tokens == 0:
            request.num_tokens += 1
        if request.request_id in self.aborting:
            self.end(request.request_id, FinishReason.ABORT)
        elif request.num_tokens >= request.max_total_tokens:
            self.end(request.request_id, LENGTH)

    def tell(self, entries: list[ScheduledRequest]) -> None:
        states = [copy(request) for request in self.held.values()]
        ended, self.ended = self.ended, []
        source = PlanSource.PLAN if entries else PlanSource.IDLE
        own = (self.executor_id, self.epoch, self.step, source, not entries, entries, states, ended, self.num_free)
        self.told.append((next(self.numbers), StepStarted(*own)))
        self.step += bool(entries)

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            request = self.held.get(request_id)
            if request is not None and request.is_held:
                self.aborting.add(request_id)
            elif request is not None:
                self.end(request_id, FinishReason.ABORT)

    def end(self, request_id: str, reason: FinishReason) -> None:
        del self.held[request_id]
        self.aborting.discard(request_id)
        self.ended.append(EndedRequest(request_id, reason))
        self.ends[request_id, reason] += 1

    def give(self, request_id: str, taker: Executor) -> Taken | None:
        """Offer it, and have it taken where there is room."""
        request = self.held[request_id]
        if request_id in taker.held or request.num_blocks > taker.num_free:
            return None
        taker.held[request_id] = copy(request)
        request.num_in_flight_tokens = HELD
        self.given[request_id] = taker
        return Taken(request_id, "", self.place, taker.place)

    def hear(self, request_id: str, is_gone: bool = False) -> None:
        """What came of it. ``is_gone``: of the taker: it goes on here."""
        del self.given[request_id]
        if is_gone:
            self.held[request_id].num_in_flight_tokens = 0
            self.abort([request_id] if request_id in self.aborting else [])
        else:
            del self.held[request_id]
            self.aborting.discard(request_id)

    def restart(self) -> None:
        self.epoch += "'"
        self.step, self.plan = 0, None
        for known in (self.held, self.given, self.aborting, self.ended, self.told):
            known.clear()


class Stack:
    """What an executor tells is handled in its order, and after each Taken that came before it; everything else in any
    order. ``loses``: the share of moves of which nobody hears, and ``dies`` that of turns in which an executor does."""

    def __init__(self, random: Random, loses: float = 0.0, dies: float = 0.0) -> None:
        self.random, self.loses, self.dies = random, loses, dies
        roles = (Role.RELAXED, Role.STRICT, Role.STRICT)
        numbers = count()
        made = (Executor(each, role, numbers=numbers) for each, role in zip(EXECUTORS, roles, strict=True))
        self.executors = {each.executor_id: each for each in made}
        self.numbers = numbers
        self.pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, self.discard)
        self.attached = AttachedExecutors()
        self.taken: deque[tuple[int, Taken]] = deque()
        self.stored: dict[str, None] = {}
        self.num_moves = 0
        for executor in self.executors.values():
            self.attach(executor)

    def attach(self, executor: Executor) -> None:
        info = make_info(role=executor.role, executor_id=executor.executor_id, epoch=executor.epoch)

        def tuning() -> tuple[Policy, LatencyModel]:
            return Policy(1e9, role=self.attached.acting_role(executor.executor_id)), MODEL

        self.attached[executor.executor_id] = Attached(Scheduler(info, self.pool, tuning, SystemClock()), 0.0)

    def discard(self, executor_id: str, request_ids: list[str]) -> None:
        self.executors[executor_id].abort(request_ids)

    def turn(self) -> None:
        executor = self.random.choice(list(self.executors.values()))
        if executor.plan is not None or self.random.random() < 0.5:
            executor.run_step()
        for request_id in list(executor.held):
            request = executor.held[request_id]
            if request.num_computed_tokens > 0 and not request.is_held and self.random.random() < 0.1:
                self.move(executor, request_id)
        for request_id, taker in list(executor.given.items()):
            if request_id not in taker.held and taker.epoch != "epoch-1" and self.random.random() < 0.1:
                executor.hear(request_id, is_gone=True)
            elif self.random.random() < 0.3:
                executor.hear(request_id)
        if self.random.random() < self.dies:
            self.kill(executor)
        while any(each.told for each in self.executors.values()) and self.random.random() < 0.8:
            self.deliver()
        self.pool.check_integrity()

    def move(self, giver: Executor, request_id: str) -> None:
        taker = self.random.choice([each for each in self.executors.values() if each is not giver])
        taken = giver.give(request_id, taker)
        if taken is not None:
            self.num_moves += 1
            if self.random.random() >= self.loses:
                self.taken.append((next(self.numbers), taken))

    def kill(self, executor: Executor) -> None:
        self.hear_taken()
        executor.restart()
        self.pool.release(executor.executor_id)
        self.attach(executor)

    def deliver(self) -> None:
        executor = self.random.choice([each for each in self.executors.values() if each.told])
        number, message = executor.told.popleft()
        self.hear_taken(self.random.choice((number, math.inf)))
        for each in message.ended:
            if each.finish_reason is LENGTH:
                self.stored[each.request_id] = None
        scheduler = self.attached[executor.executor_id].scheduler
        abort = scheduler.on_step(decode(encode(message), StepStarted))
        for plan in scheduler.plan():
            executor.plan = decode(encode(plan), StepPlan)
        if abort is not None:
            executor.abort(abort.request_ids)
        if self.random.random() < 0.3:
            self.pool.discard(list(self.stored))

    def hear_taken(self, end: float = math.inf) -> None:
        while self.taken and self.taken[0][0] < end:
            _, taken = self.taken.popleft()
            if not self.attached.move(taken, self.pool):
                self.executors[taken.taker.executor_id].abort([taken.request_id])


def run(stack: Stack) -> None:
    """To the end of all requests, and until nobody holds any."""
    random = stack.random
    stack.pool.add([make_offline(n, random.randint(1, 60), random.randint(2, 40)) for n in range(40)])
    for executor in stack.executors.values():
        executor.tell([])
    for turn in range(20_000):
        if turn == 4000:
            stack.dies = 0.0
        stack.turn()
        is_over = len(stack.stored) == len(REQUEST_IDS)
        if is_over and not any(each.held or each.told for each in stack.executors.values()):
            break
    stack.hear_taken()
    stack.pool.discard(list(stack.stored))
    assert len(stack.stored) == len(REQUEST_IDS) and len(stack.pool) == 0
    assert not any(each.held for each in stack.executors.values())
    assert stack.num_moves > 20


@pytest.mark.parametrize("seed", range(12))
def test_what_moves_runs_once(seed: int) -> None:
    stack = Stack(Random(seed))
    run(stack)
    executors = stack.executors.values()
    assert sum((each.entered for each in executors), Counter()) == Counter(REQUEST_IDS)
    assert sum((each.ends for each in executors), Counter()) == Counter((each, LENGTH) for each in REQUEST_IDS)


@pytest.mark.parametrize("seed", range(12))
def test_what_moves_ends_whoever_dies_and_whatever_is_lost(seed: int) -> None:
    run(Stack(Random(seed), loses=0.2, dies=0.01))


# One move


@pytest.fixture
def stack() -> Stack:
    """Where the giver runs one request."""
    made = Stack(Random(1))
    made.pool.add([make_offline(1)])
    giver = made.executors["executor-0"]
    giver.tell([])
    made.deliver()
    giver.run_step()
    made.deliver()
    assert made.pool.is_held("batch_1.1", "executor-0")
    return made


def moved(stack: Stack, giver: str = "executor-0", taker: str = "executor-1") -> Taken:
    taken = stack.executors[giver].give("batch_1.1", stack.executors[taker])
    assert taken is not None
    return taken


def said(stack: Stack, executor_id: str) -> AbortRequests | None:
    """What comes of an executor's word now."""
    executor = stack.executors[executor_id]
    executor.tell([])
    return stack.attached[executor_id].scheduler.on_step(executor.told.pop()[1])


def test_the_picture_of_its_giver_is_without_it_and_that_of_its_taker_learns_of_it(stack: Stack) -> None:
    giver, taker = (stack.attached[each].scheduler for each in EXECUTORS[:2])
    assert stack.attached.move(moved(stack), stack.pool)
    assert not giver.holds("batch_1.1") and stack.pool.is_held("batch_1.1", "executor-1")
    assert said(stack, "executor-1") is None and taker.holds("batch_1.1")
    assert stack.pool.num_waiting == 0


def test_a_giver_that_has_not_heard_yet_is_not_told_to_stop_it(stack: Stack) -> None:
    assert stack.attached.move(moved(stack), stack.pool)
    assert said(stack, "executor-0") is None
    assert stack.pool.is_held("batch_1.1", "executor-1")
    stack.executors["executor-0"].hear("batch_1.1", is_gone=True)  # it goes on, though it was taken
    assert said(stack, "executor-0") == AbortRequests(["batch_1.1"])


def test_what_is_over_is_stopped_at_its_taker(stack: Stack) -> None:
    taken = moved(stack)
    stack.pool.discard(["batch_1.1"])
    assert not stack.attached.move(taken, stack.pool)


def test_what_is_elsewhere_is_stopped_at_its_taker(stack: Stack) -> None:
    taken = moved(stack)
    stack.pool.release("executor-0")
    stack.pool.take("batch_1.1", "executor-2")
    assert not stack.attached.move(taken, stack.pool)
    assert stack.pool.is_held("batch_1.1", "executor-2")


def test_what_waits_since_its_giver_died_is_its_takers(stack: Stack) -> None:
    taken = moved(stack)
    stack.kill(stack.executors["executor-0"])
    assert stack.pool.num_waiting == 1
    assert stack.attached.move(taken, stack.pool)
    assert stack.pool.num_waiting == 0 and stack.pool.is_held("batch_1.1", "executor-1")


def test_what_a_giver_got_anew_is_not_its_takers(stack: Stack) -> None:
    taken = moved(stack)
    stack.kill(stack.executors["executor-0"])
    stack.pool.take("batch_1.1", "executor-0")
    assert not stack.attached.move(taken, stack.pool)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_taker_that_is_gone_gets_nothing(stack: Stack, is_restarted: bool) -> None:
    taken = moved(stack)
    if is_restarted:
        stack.kill(stack.executors["executor-1"])
    else:
        stack.attached["executor-1"].is_silent = True
    assert not stack.attached.move(taken, stack.pool)
    assert stack.pool.is_held("batch_1.1", "executor-0")


def test_a_taker_that_dies_later_gives_it_back(stack: Stack) -> None:
    assert stack.attached.move(moved(stack), stack.pool)
    assert stack.pool.release("executor-1") == ["batch_1.1"]
    assert stack.pool.num_waiting == 1


def test_what_only_a_gateway_knows_is_left_to_it(stack: Stack) -> None:
    taken = replace(moved(stack), gateway_id="gateway")
    assert stack.attached.move(replace(taken, request_id="online-1"), stack.pool)
    assert stack.attached.move(taken, stack.pool)  # flex
    assert stack.pool.is_held("batch_1.1", "executor-1")


def test_requests_that_a_pool_of_before_knew_may_go_on_at_their_takers(stack: Stack) -> None:
    taken = moved(stack)
    pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None, lambda each: each == "batch_1.1")
    assert stack.attached.move(taken, pool)
    assert not stack.attached.move(replace(taken, request_id="batch_1.2"), pool)


# Roles


def test_what_an_executor_acts_as_follows_who_is_there(stack: Stack) -> None:
    attached = stack.attached
    assert [attached.acting_role(each) for each in EXECUTORS] == [Role.RELAXED, Role.STRICT, Role.STRICT]
    attached["executor-0"].is_silent = True
    assert attached.acting_role("executor-1") is Role.MIXED
    attached["executor-0"].is_silent = False
    for each in EXECUTORS[1:]:
        attached[each].scheduler.takes_requests = False
    assert [attached.acting_role(each) for each in EXECUTORS[:2]] == [Role.MIXED, Role.STRICT]
    info = replace(attached["executor-2"].scheduler.info, role=Role.RELAXED)
    assert attached["executor-2"].update(info) and not attached["executor-2"].update(info)
    assert attached.acting_role("executor-2") is Role.MIXED and attached.acting_role("executor-1") is Role.STRICT
    assert attached["executor-1"].update(replace(attached["executor-1"].scheduler.info, kv_link=""))
    assert attached.acting_role("executor-1") is Role.MIXED  # it can give and take nothing


def test_no_prompt_enters_a_strict_executor_beside_others(stack: Stack) -> None:
    stack.pool.add([make_offline(2)])
    assert said(stack, "executor-1") is None
    scheduler = stack.attached["executor-1"].scheduler
    assert scheduler.plan() == []
    stack.attached["executor-0"].is_silent = True
    (plan,) = scheduler.plan()
    assert [each.request_id for each in plan.admitted] == ["batch_1.2"]


def test_executors_are_at_work_while_they_hold_requests() -> None:
    pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda *_: None)
    attached = AttachedExecutors()
    for executor_id in EXECUTORS:
        info = replace(make_info(), executor_id=executor_id)
        attached[executor_id] = Attached(Scheduler(info, pool, lambda: (Policy(), MODEL), SystemClock()), 0.0)

    def at_work() -> list[str]:
        return [info.executor_id for info in attached.at_work(pool)]

    pool.add([make_offline(0), make_offline(1)])
    assert at_work() == []
    pool.take("batch_1.0", "executor-1")
    pool.take("batch_1.1", "executor-2")
    assert at_work() == ["executor-1", "executor-2"]
    attached["executor-2"].is_silent = True
    assert at_work() == ["executor-1"]
    pool.discard(["batch_1.0"])
    assert at_work() == []
