"""Several simulated executors behind one router, and a backlog that they share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.lab.lab import HYGEN, ONLINE_ONLY, SEED, Machine, Progress, VirtualExecutor, VirtualSystem
from shared.protocol.executors import ExecutorCounters
from shared.protocol.offline import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, Route, RoutingTarget, choose
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy

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
        made: list[GenerateRequest] = []
        now_s = rng.expovariate(self.rate)
        while now_s < self.duration_s:
            (prefix,) = rng.choices(range(self.num_prefixes), weights)
            own = [rng.randrange(10_000, 30_000) for _ in range(1 + int(rng.expovariate(1 / self.own_tokens)))]
            max_tokens = 1 + int(rng.expovariate(1 / MEAN_OUTPUT_TOKENS))
            sampling = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
            token_ids = [prefix] * self.prefix_tokens + own
            made.append(GenerateRequest(f"r-{len(made)}", Kind.ONLINE, token_ids, sampling, now_s))
            now_s += rng.expovariate(self.rate)
        return made


@dataclass(slots=True)
class Member:
    """One executor of the fleet."""

    executor: VirtualExecutor
    target: RoutingTarget
    num_open: int = 0


Choose = Callable[[Sequence[Member], Prompt], Member]


class Fleet:
    """``run`` plays all requests to their ends."""

    def __init__(self, machine: Machine, size: int, choose_member: Choose) -> None:
        self.ttft_ms: list[float] = []
        self._choose = choose_member
        self._system = system_of(machine, ONLINE_ONLY.strategy, size, FairShare, self._take)
        self.members = [Member(each, target_of(each)) for each in self._system.executors.values()]
        self._open: dict[str, tuple[GenerateRequest, Member, Route]] = {}
        self._answered: dict[str, None] = {}

    def run(self, requests: Sequence[GenerateRequest]) -> None:
        """Requests by arrival."""
        events = self._system.events
        for request in requests:
            while events.next_s is not None and events.next_s <= request.arrival_s:
                events.run_next()
            events.advance(request.arrival_s)
            prompt = Prompt(request.prompt_token_ids)
            member = self._choose(self.members, prompt)
            self._open[request.request_id] = request, member, member.target.send(prompt)
            member.num_open += 1
            self._system.queue.on_inbox(member.executor.info.executor_id, request)
            member.executor.submit(request)
        while self._open:
            events.run_next()

    def hit_rate(self) -> float:
        """Of the prompts' tokens, those that came from a prefix cache."""
        return hit_rate([member.executor.replica.totals for member in self.members])

    def _take(self, progress: Progress) -> None:
        for _, output in progress.outputs:
            self._answer(output.request_id, progress.end_s)
        for ended in progress.ended:
            request_id = ended.sequence.request_id
            self._answer(request_id, progress.end_s)
            _, member, route = self._open.pop(request_id)
            route.end()
            member.num_open -= 1

    def _answer(self, request_id: str, now_s: float) -> None:
        if request_id not in self._answered:
            self._answered[request_id] = None
            request, _, route = self._open[request_id]
            route.answered()
            self.ttft_ms.append((now_s - request.arrival_s) * 1e3)


def target_of(executor: VirtualExecutor) -> RoutingTarget:
    """As a gateway has it whom all messages reach at once."""
    info, limits = executor.info, executor.setup.limits
    tokens, size = limits.max_num_batched_tokens, limits.block_size
    return RoutingTarget(info.executor_id, info.epoch, tokens, size, limits.num_blocks, executor.replica.pool)


class UnlikePrompt(Prompt):
    """One that nobody has anything of."""

    def hashes(self, block_size: int) -> list[bytes]:
        return []


def by_prediction(machine: Machine, with_prefixes: bool) -> Choose:
    """What the gateway does, with the latency model that the machine has."""
    model = machine.setup(ONLINE_ONLY.strategy, SEED).latency

    def choice(members: Sequence[Member], prompt: Prompt) -> Member:
        options = [Option(member.target, model) for member in members]
        known = prompt if with_prefixes else UnlikePrompt(range(prompt.num_tokens))
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


class TakesWhatIsNext(FairShare):
    """Each executor as if it were alone: the order does not learn who took what."""

    def take(self, request_id: str, reader: str | None = None) -> None:
        super().take(request_id)


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog that several executors have run."""

    hit_rate: float
    duration_s: float


def run_backlog(
    machine: Machine, size: int, budget_ms: float, requests: Sequence[GenerateRequest], keeps_groups: bool
) -> Drained:
    """With preset hygen and no online work. ``keeps_groups``: each executor keeps to prompts that no other is at."""
    ended: list[float] = []

    def take(progress: Progress) -> None:
        ended.extend([progress.end_s] * len(progress.ended))

    order = FairShare if keeps_groups else TakesWhatIsNext
    system = system_of(machine, HYGEN.under(budget_ms), size, order, take)
    system.queue.pool.add([OfflineRequest(each, "batch_1", n, f"{n}", "m") for n, each in enumerate(requests)])
    while len(ended) < len(requests):
        system.events.run_next()
    return Drained(hit_rate([each.replica.totals for each in system.executors.values()]), max(ended))


def system_of(
    machine: Machine,
    strategy: Strategy,
    size: int,
    order: type[FairShare],
    on_progress: Callable[[Progress], None],
) -> VirtualSystem:
    """``size`` executors and their offline-queue."""
    numbers = iter(random.Random(f"{SEED}:order").random, None)
    setups = [machine.setup(strategy, SEED)] * size
    return VirtualSystem(setups, order(strategy.make_offline_order(numbers)), on_progress)


def hit_rate(totals: Sequence[ExecutorCounters]) -> float:
    """Of the prompts' tokens, those that came from a prefix cache."""
    cached = sum(each.cached_tokens for each in totals)
    return cached / (cached + sum(each.prompt_tokens for each in totals))
