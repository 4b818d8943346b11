"""Workloads without files: Poisson arrivals, lengths drawn, beside backlogs whose prompts share nothing. The same seed
draws the same."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.lab.lab import Load
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace

OnlineOption = Annotated[Path | None, typer.Option(metavar="TRACE", help="Online arrivals: Azure's conversations.")]
OfflineOption = Annotated[
    Path | None, typer.Option(metavar="LENGTHS", help="Offline backlog, prompts or lengths: arXiv summaries.")
]
DurationOption = Annotated[float, typer.Option(min=1.0, help="Seconds of each run, in virtual time.")]
Length = Callable[[random.Random], int]  # draws one, in tokens
Bounds = tuple[int, int]


def poisson(rate: float, duration_s: float, rng: random.Random, prompt: Length, output: Length) -> list[TraceRequest]:
    """``rate`` requests/s for ``duration_s`` seconds."""
    made: list[TraceRequest] = []
    now_s = rng.expovariate(rate)
    while now_s < duration_s:
        made.append(TraceRequest(now_s, prompt(rng), output(rng)))
        now_s += rng.expovariate(rate)
    return made


def with_prefix(request: TraceRequest, number: int, num_tokens: int) -> TraceRequest:
    """The same, its prompt behind as many tokens, which all those with this number share."""
    total = num_tokens + request.num_prompt_tokens
    return replace(request, num_prompt_tokens=total, block_ids=(number,), block_tokens=num_tokens)


def uniform_backlog(size: int, rng: random.Random, prompt: Bounds, output: Bounds) -> list[OfflinePrompt]:
    """Lengths between these bounds, both included."""
    return [OfflinePrompt(rng.randint(*output), num_prompt_tokens=rng.randint(*prompt)) for _ in range(size)]


def exponential(mean: int) -> Length:
    """Lengths around it, at least 1."""
    return lambda rng: 1 + int(rng.expovariate(1 / mean))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths with this mean and this standard deviation."""

    mean: float
    deviation: float

    def __call__(self, rng: random.Random) -> int:
        variance = math.log1p((self.deviation / self.mean) ** 2)
        return max(1, round(rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))))


def mixed_load(rate: float, duration_s: float, seed: int) -> Load:
    """Lengths spread over three decades, beside long prompts with outputs of 50 to 300 tokens."""
    rng = random.Random(seed)

    def spread(mu: float, sigma: float) -> Length:
        return lambda rng: int(rng.lognormvariate(mu, sigma)) + 1

    requests = poisson(rate, duration_s, rng, spread(6.0, 1.0), spread(4.5, 0.8))
    return Load(requests, uniform_backlog(500, rng, (500, 3500), (50, 300)), duration_s)


def load_of(online: Path | None, offline: Path | None, duration_s: float, qps: float | None, drawn_rate: float) -> Load:
    """Of files, the trace sampled to ``qps``; else lengths are exponential around the means of Azure's conversation
    trace of 2023 (5.4 requests/s), with as many prompts as arXiv has summaries, as long. Raises LoadgenError."""
    requests = (
        Scaling(duration_s=duration_s, qps=qps).apply(read_trace(online))
        if online
        else poisson(drawn_rate, duration_s, random.Random(0), exponential(1155), exponential(211))
    )
    prompts = load_backlog(offline) if offline else [OfflinePrompt(291, num_prompt_tokens=2588)] * 28_000
    return Load(requests, prompts, duration_s)
