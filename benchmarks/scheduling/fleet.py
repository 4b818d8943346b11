"""What several simulated executors make of online requests under one router, and of a backlog that they share."""

import itertools
import random
from collections.abc import Sequence
from functools import partial

from benchmarks.lab.drawn import poisson_times
from benchmarks.lab.lab import SEED, Machine, Progress, VirtualSystem
from shared.protocol.executors import ExecutorCounters
from shared.protocol.offline import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.routing import Option, RoutingTarget, choose
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.simulation.router import Choose

MEAN_OUTPUT_TOKENS = 64


class Fleet:
    """Alike executors, and when each request had its first token and its end, in seconds."""

    def __init__(
        self,
        machine: Machine,
        size: int,
        strategy: Strategy,
        share: type[FairShare] = FairShare,
        route: Choose = choose,
    ) -> None:
        """``route`` is what the gateway does."""
        self.first_token_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        order = share(strategy.make_offline_order(iter(random.Random(f"{SEED}:order").random, None)))
        self._system = VirtualSystem([machine.setup(strategy, SEED)] * size, order, self._note, choose=route)

    @property
    def totals(self) -> list[ExecutorCounters]:
        """What the executors counted."""
        return [each.replica.totals for each in self._system.executors.values()]

    @property
    def hit_rate(self) -> float:
        """Of the prompts' tokens, those that came from a prefix cache."""
        cached = sum(each.cached_tokens for each in self.totals)
        return cached / (cached + sum(each.prompt_tokens for each in self.totals))

    def serve_online(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            self._system.events.at(request.arrival_s, partial(self._system.submit, request))
        self._run(len(requests))

    def serve_backlog(self, requests: Sequence[GenerateRequest]) -> None:
        waiting = [OfflineRequest(each, "batch_1", n, f"{n}", "m") for n, each in enumerate(requests)]
        self._system.queue.pool.add(waiting)
        self._run(len(requests))

    def _run(self, num_requests: int) -> None:
        """To the last end."""
        while len(self.end_s) < num_requests:
            self._system.events.run_next()

    def _note(self, progress: Progress) -> None:
        ended = [each.sequence.request_id for each in progress.ended]
        for request_id in (*(output.request_id for _, output in progress.outputs), *ended):
            self.first_token_s.setdefault(request_id, progress.end_s)
        self.end_s.update(dict.fromkeys(ended, progress.end_s))


def choose_by_load(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget | None:
    """As the gateway, of a prompt that nobody has anything of."""
    return choose(options, UnlikePrompt(range(prompt.num_tokens)), num_output_tokens)


class UnlikePrompt(Prompt):
    """One that nobody has anything of."""

    def hashes(self, block_size: int) -> list[bytes]:
        return []


def least_requests(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget:
    """By the number of requests that have not ended."""
    works = [each.target.work() for each in options]
    num_open = [work.prefill_requests + work.decode_requests for work in works]
    return options[num_open.index(min(num_open))].target


def round_robin() -> Choose:
    """Each in turn."""
    turns = itertools.count()
    return lambda options, prompt, num_output_tokens: options[next(turns) % len(options)].target


class TakesWhatIsNext(FairShare):
    """Each executor as if it were alone: the order does not learn who took what."""

    def take(self, request_id: str, reader: str | None = None) -> None:
        super().take(request_id)


def prefixed_requests(
    rate: float, duration_s: float, num_prefixes: int, prefix_tokens: int, own_tokens: int, seed: int
) -> list[GenerateRequest]:
    """Poisson arrivals at ``rate`` requests/s whose prompts begin with one of ``num_prefixes``, chosen by 1 / rank, and
    go on with ``own_tokens`` in the mean; those and the outputs' lengths are exponentially spread."""
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, num_prefixes + 1)]
    made: list[GenerateRequest] = []
    for now_s in poisson_times(rate, duration_s, rng):
        (prefix,) = rng.choices(range(num_prefixes), weights)
        own = [rng.randrange(10_000, 30_000) for _ in range(1 + int(rng.expovariate(1 / own_tokens)))]
        max_tokens = 1 + int(rng.expovariate(1 / MEAN_OUTPUT_TOKENS))
        made.append(_request(f"r-{len(made)}", Kind.ONLINE, [prefix] * prefix_tokens + own, max_tokens, now_s))
    return made


def grouped_requests(num_groups: int, group_size: int) -> list[GenerateRequest]:
    """Offline ones. Each group shares 2,048 tokens, and comes whole."""
    numbers = itertools.product(range(num_groups), range(group_size))
    return [
        _request(f"batch_1.{index}", Kind.OFFLINE, [group] * 2048 + [10_000 + number] * 64, 32, 0.0)
        for index, (group, number) in enumerate(numbers)
    ]


def _request(request_id: str, kind: Kind, token_ids: list[int], max_tokens: int, arrival_s: float) -> GenerateRequest:
    sampling = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(request_id, kind, token_ids, sampling, arrival_s)
