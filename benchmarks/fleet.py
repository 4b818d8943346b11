"""Several simulated executors behind one router, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from services.profiler.simulation.backlog import Backlog
from services.profiler.simulation.setup import Machine, make_strategy
from services.profiler.simulation.virtual_executor import Step, VirtualExecutor
from shared.protocol.messages import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.totals import Totals
from shared.scheduling.orders.offline.order import OfflineOrder
from shared.scheduling.orders.offline.rate import OfflineRate
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.orders.packed_prompt import pack_tokens
from shared.scheduling.placement.prefix_record import Prompt
from shared.scheduling.placement.routing import Option, Route, RoutingTarget, choose
from shared.scheduling.request import Kind, Request

MEAN_OUTPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """Poisson arrivals whose prompts begin with one of ``num_prefixes``, chosen with a probability of 1 / rank."""

    rate: float  # requests a second
    duration_s: float
    num_prefixes: int
    prefix_tokens: int
    own_tokens: int  # on average, exponentially spread

    def requests(self, seed: int) -> list[GenerateRequest]:
        """By arrival, from 0 s on. Output lengths are exponentially spread."""
        rng = random.Random(seed)
        weights = [1 / rank for rank in range(1, self.num_prefixes + 1)]
        made, now_s = [], rng.expovariate(self.rate)
        while now_s < self.duration_s:
            (prefix,) = rng.choices(range(self.num_prefixes), weights)
            own = [rng.randrange(10_000, 30_000) for _ in range(1 + int(rng.expovariate(1 / self.own_tokens)))]
            sampling = SamplingParams(
                1 + int(rng.expovariate(1 / MEAN_OUTPUT_TOKENS)), temperature=0.0, ignore_eos=True
            )
            token_ids = [prefix] * self.prefix_tokens + own
            made.append(GenerateRequest(f"r-{len(made)}", Kind.ONLINE, token_ids, sampling, now_s))
            now_s += rng.expovariate(self.rate)
        return made


@dataclass(slots=True)
class Member:
    """One executor of the fleet. ``arrived``: sent to it while a step runs."""

    executor: VirtualExecutor
    target: RoutingTarget
    arrived: list[GenerateRequest] = field(default_factory=list)
    num_open: int = 0
    is_busy: bool = False


Choose = Callable[[Sequence[Member], Prompt], Member]


class _Event(NamedTuple):
    time_s: float
    number: int
    member: Member
    step: Step


class Fleet:
    """``run`` plays all requests to their ends."""

    def __init__(self, machine: Machine, size: int, choose_member: Choose) -> None:
        strategy = make_strategy("online-only", None, None)
        self.setup = machine.setup(strategy, seed=0)
        limits = self.setup.limits
        room = limits.num_blocks * limits.block_size
        self.members = [
            Member(
                VirtualExecutor(self.setup, None, OfflineRate()),
                RoutingTarget(f"executor-{index}", "epoch", limits.max_num_batched_tokens, room),
            )
            for index in range(size)
        ]
        self.ttft_ms: list[float] = []
        self._choose = choose_member
        self._steps: list[_Event] = []  # a heap
        self._numbers = itertools.count()
        self._open: dict[str, tuple[GenerateRequest, Route]] = {}
        self._answered: dict[str, None] = {}

    def run(self, requests: Sequence[GenerateRequest]) -> None:
        """Requests by arrival."""
        for request in requests:
            self._run_until(request.arrival_s)
            prompt = Prompt.of(request.prompt_token_ids)
            member = self._choose(self.members, prompt)
            self._open[request.request_id] = request, member.target.send(prompt)
            member.num_open += 1
            member.arrived.append(request)
            if not member.is_busy:
                self._start(member, request.arrival_s)
        self._run_until(float("inf"))

    def hit_rate(self) -> float:
        """Of the prompts' tokens, those that came from a prefix cache."""
        return hit_rate([member.executor.replica.totals for member in self.members])

    def _run_until(self, time_s: float) -> None:
        while self._steps and self._steps[0].time_s <= time_s:
            event = heapq.heappop(self._steps)
            self._apply(event)
            self._start(event.member, event.time_s)

    def _start(self, member: Member, now_s: float) -> None:
        for request in member.arrived:
            member.executor.submit(request)
        member.arrived.clear()
        step = member.executor.run_step(now_s)
        member.is_busy = step is not None
        if step is not None:
            heapq.heappush(self._steps, _Event(step.end_s, next(self._numbers), member, step))

    def _apply(self, event: _Event) -> None:
        for _, output in event.step.outputs:
            self._answer(output.request_id, event.time_s)
        for ended in event.step.ended:
            request_id = ended.sequence.request_id
            self._answer(request_id, event.time_s)
            self._open.pop(request_id)[1].end()
            event.member.num_open -= 1

    def _answer(self, request_id: str, now_s: float) -> None:
        if request_id not in self._answered:
            self._answered[request_id] = None
            request, route = self._open[request_id]
            route.answered()
            self.ttft_ms.append((now_s - request.arrival_s) * 1e3)


def by_prediction(machine: Machine, with_prefixes: bool) -> Choose:
    """What the gateway does, with the latency model that the machine has."""
    model = machine.setup(make_strategy("online-only", None, None), seed=0).latency

    def choice(members: Sequence[Member], prompt: Prompt) -> Member:
        options = [Option(member.target, model) for member in members]
        known = prompt if with_prefixes else Prompt(prompt.num_tokens, [])
        target = choose(options, known, MEAN_OUTPUT_TOKENS)
        return next(member for member in members if member.target is target)

    return choice


def least_requests(members: Sequence[Member], prompt: Prompt) -> Member:
    """By the number of requests that have not ended."""
    return min(members, key=lambda member: member.num_open)


def round_robin() -> Choose:
    """Each in turn."""
    turns = itertools.count()
    return lambda members, prompt: members[next(turns) % len(members)]


class SharedBacklog:
    """One order of offline requests that several executors draw on, as one of them sees it; without a ``reader`` as
    if it were alone."""

    def __init__(self, order: OfflineOrder, requests: dict[str, GenerateRequest], reader: str | None) -> None:
        self._order = order
        self._requests = requests
        self._reader = reader

    def __len__(self) -> int:
        return self._order.num_waiting

    def in_order(self, view: OfflineView = NOBODY) -> Iterator[Request]:
        return self._order.in_order(replace(view, reader=self._reader))

    def take(self, request_id: str) -> GenerateRequest:
        self._order.take(request_id, self._reader)
        return self._requests[request_id]

    def end(self, now_s: float) -> None:
        """All are there from the beginning."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog that several executors have run."""

    hit_rate: float
    duration_s: float


def run_backlog(
    machine: Machine, size: int, budget_ms: float, requests: Sequence[GenerateRequest], keeps_groups: bool
) -> Drained:
    """With preset hygen and no online work. ``keeps_groups``: each executor keeps to prompts that no other is at."""
    strategy = make_strategy("hygen", budget_ms, None)
    order, setup = strategy.make_offline_order(seed=0), machine.setup(strategy, seed=0)
    known = {request.request_id: request for request in requests}
    for request in requests:
        num_tokens = len(request.prompt_token_ids)
        waiting = Request(request.request_id, Kind.OFFLINE, num_tokens, num_tokens + request.sampling.max_tokens)
        order.add(waiting, pack_tokens(request.prompt_token_ids))
    readers = [f"executor-{index}" if keeps_groups else None for index in range(size)]
    backlogs = [SharedBacklog(order, known, reader) for reader in readers]
    executors = [VirtualExecutor(setup, cast(Backlog, each), OfflineRate()) for each in backlogs]
    steps = [(0.0, index) for index in range(size)]  # a heap of when each executor is free
    end_s = 0.0
    while steps:
        now_s, index = heapq.heappop(steps)
        step = executors[index].run_step(now_s)
        if step is not None:
            end_s = max(end_s, step.end_s)
            heapq.heappush(steps, (step.end_s, index))
    return Drained(hit_rate([each.replica.totals for each in executors]), end_s)


def hit_rate(totals: Sequence[Totals]) -> float:
    """Of the prompts' tokens, those that came from a prefix cache."""
    cached = sum(each.cached_tokens for each in totals)
    return cached / (cached + sum(each.prompt_tokens for each in totals))
