"""Benches whose online requests come at a trace's times with drawn lengths, each beside one of several backlogs. What
is set is set on one part of a trace and shown on another, with other seeds."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.lab.drawn import DurationOption, Lognormal, OnlineOption
from benchmarks.lab.lab import Bench, Load, Machine, machine_name
from benchmarks.lab.samples import FittedModels
from loadgen.errors import WorkloadError
from loadgen.progress import ReplayProgress
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.servegen import ServegenDay
from loadgen.workload.traces import TraceRequest, read_trace

GIVEN = "files are checked before the first figure"
FIRST_DAY = 8  # of those that are used: on it and the next the busiest hour has 3 times the quietest


@dataclass(frozen=True, slots=True)
class BacklogOptions:
    """A file may be None where no figure needs it."""

    online: OnlineOption = None
    clients: Annotated[Path | None, typer.Option(metavar="CSV", help="Online arrivals of days: ServeGen's.")] = None
    shots: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's dev questions.")] = None
    questions: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's test questions.")] = None
    task_prompts: Annotated[Path | None, typer.Option(metavar="JSONL", help="BBH's examples.")] = None
    tasks: Annotated[Path | None, typer.Option(metavar="JSONL", help="BBH's questions.")] = None
    rate: Annotated[float | None, typer.Option(min=0.01, help="Online requests/s; else the figure's own.")] = None
    duration: DurationOption = 720.0
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds at the start that do not count.")] = 120.0
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 512
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")] = None


@dataclass(frozen=True, slots=True)
class Part:
    """Of a trace: its halves, or its days, are numbered from 0; ``seed``: of all that is drawn."""

    number: int
    seed: int


CHOSEN_ON, SHOWN_ON = Part(0, 1), Part(1, 2)


@dataclass(frozen=True, slots=True)
class Online:
    """``arrivals_s``: so many requests/s for so many seconds, of that part of a trace; ``rate``: in requests/s, where
    the options say nothing else."""

    name: str
    arrivals_s: Callable[[BacklogOptions, Part, float, float], list[float]]
    prompt: Lognormal
    output: Lognormal
    rate: float

    def requests(self, options: BacklogOptions, part: Part, rate: float, duration_s: float) -> list[TraceRequest]:
        """Raises LoadgenError."""
        rng = random.Random(f"lengths:{part.seed}")
        arrivals_s = self.arrivals_s(options, part, rate, duration_s)
        return [TraceRequest(arrival_s, self.prompt(rng), self.output(rng)) for arrival_s in arrivals_s]


@dataclass(frozen=True, slots=True)
class Backlog:
    """``prompts``: so many, with a seed; ``per_s``: more than any system finishes in a second; ``longest_s``: a run
    beside them, where they are soon done."""

    name: str
    prompts: Callable[[BacklogOptions, int, int], list[OfflinePrompt]]
    per_s: float
    longest_s: float = float("inf")


@dataclass(slots=True)
class BacklogLab:
    """Makes benches and keeps them, so that figures which need the same run share it."""

    options: BacklogOptions
    progress: ReplayProgress
    machine: Machine = field(init=False)
    _benches: dict[tuple[Online, Backlog | None, Part, float], Bench] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        machine = Machine(model="llama3.1-8b", device="a100-40g", kv_blocks=self.options.kv_blocks)
        self.machine = replace(machine, max_num_batched_tokens=self.options.chunk)

    def bench(self, online: Online, backlog: Backlog | None, part: Part = SHOWN_ON, rate: float | None = None) -> Bench:
        """``backlog``: None is none; ``rate``: None is ``rate_of``. Raises LoadgenError."""
        key = (online, backlog, part, rate or self.rate_of(online))
        if key not in self._benches:
            duration_s = self.duration_s(backlog)
            requests = online.requests(self.options, part, key[-1], duration_s)
            size = 0 if backlog is None else max(1, round(duration_s * backlog.per_s))
            prompts = [] if backlog is None else backlog.prompts(self.options, size, part.seed)
            self._benches[key] = Bench(
                self.machine, Load(requests, prompts, duration_s), self.progress, planners=FittedModels(self.machine)
            )
        return self._benches[key]

    def rate_of(self, online: Online) -> float:
        """Requests/s."""
        return self.options.rate or online.rate

    def duration_s(self, backlog: Backlog | None) -> float:
        return self.options.duration if backlog is None else min(self.options.duration, backlog.longest_s)

    def warm_up_s(self, backlog: Backlog | None) -> float:
        """The same share of a run that is shorter."""
        return self.options.warm_up * self.duration_s(backlog) / self.options.duration

    def where(self, online: Online, backlog: Backlog | None = None) -> str:
        """For captions."""
        blocks = "" if self.machine.kv_blocks is None else f", {self.machine.kv_blocks:,} KV blocks"
        window = f"{self.duration_s(backlog):g} s, of which the first {self.warm_up_s(backlog):g} do not count"
        rate = f"{online.name} at {self.rate_of(online):g} requests/s"
        return f"{machine_name(self.machine)}, {self.options.chunk} tokens a step{blocks}; {rate}; {window}"


def of_trace(options: BacklogOptions, part: Part, rate: float, duration_s: float) -> list[float]:
    """Of one half of the trace. Raises LoadgenError, also for a duration that is longer than that."""
    assert options.online is not None, GIVEN
    trace = list(read_trace(options.online))
    half_s = trace[-1].arrival_s / 2 if trace else 0.0
    if duration_s > half_s:
        raise WorkloadError(f"{options.online}: a half of the trace is {half_s:.0f} s long: give a shorter --duration")
    scaling = Scaling(start_s=part.number * half_s, duration_s=duration_s, qps=rate, seed=part.seed)
    return [request.arrival_s for request in scaling.apply(trace)]


def of_day(options: BacklogOptions, part: Part, rate: float, duration_s: float) -> list[float]:
    """A whole day in so many seconds. Raises LoadgenError."""
    assert options.clients is not None, GIVEN
    return ServegenDay.read(options.clients, FIRST_DAY + part.number).arrivals_s(rate, duration_s, part.seed)
