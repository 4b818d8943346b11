"""Benches whose requests are drawn, at several online rates, beside a backlog: no files are needed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from benchmarks.lab.drawn import DurationOption, Lognormal, poisson, uniform_backlog, with_prefix
from benchmarks.lab.lab import SEED, Bench, Load, Machine, machine_name
from benchmarks.lab.samples import FittedModels
from loadgen.progress import ReplayProgress
from loadgen.workload.traces import TraceRequest

MACHINES = {
    machine.model: machine
    for machine in (
        Machine(model="llama2-7b", device="a100-40g"),
        Machine(model="llama3.1-8b", device="a100-40g"),
        Machine(model="opt-13b", device="a100-40g", tensor_parallel=2),
        Machine(model="opt-30b", device="a100-40g", tensor_parallel=4),
        Machine(model="llama3-70b", device="a100-80g", tensor_parallel=8),
    )
}
OFFLINE_PROMPT, OFFLINE_OUTPUT = (512, 1024), (32, 128)  # tokens, uniform (BROS section 7.1)
BACKLOG_PER_S = 20  # more than any of the machines finishes
PREAMBLE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class RateOptions:
    """Of a paper's command."""

    model: Annotated[str | None, typer.Option(help=f"{', '.join(MACHINES)}; else the figure's own.")] = None
    rate: Annotated[
        list[float] | None, typer.Option(min=0.01, help="Online requests/s, repeatable; else the figure's own.")
    ] = None
    duration: DurationOption = 600.0
    budget_ms: Annotated[float, typer.Option(min=0.0, help="Latency budget of hygen.")] = 50.0
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 512
    kv_blocks: Annotated[
        int | None, typer.Option(min=1, help="KV blocks; else the figure's own, or what fits beside the weights.")
    ] = None
    preambles: Annotated[
        int, typer.Option(min=0, help=f"Online prompts begin with one of so many texts of {PREAMBLE_TOKENS} tokens.")
    ] = 0


@dataclass(frozen=True, slots=True)
class Dataset:
    """Conversations."""

    name: str
    prompt: Lognormal
    output: Lognormal

    def arrivals(self, rate: float, duration_s: float, seed: int, num_preambles: int = 0) -> list[TraceRequest]:
        """At ``rate`` requests/s. Those of a higher rate are others."""
        rng = random.Random(f"{self.name}:{rate}:{seed}")
        requests = poisson(rate, duration_s, rng, self.prompt, self.output)
        if not num_preambles:
            return requests
        return [with_prefix(each, rng.randrange(num_preambles), PREAMBLE_TOKENS) for each in requests]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a figure runs where the options say nothing else. ``wave_size``: of offline requests; None submits all at
    once, 0 none. ``kv_blocks``: None is what fits beside the weights. ``num_requests``: online, about so many at
    most; None is as many as come in the options' duration."""

    model: str
    datasets: tuple[Dataset, ...]
    rates: tuple[float, ...]
    wave_size: int | None = None
    kv_blocks: int | None = None
    num_requests: int | None = None


@dataclass(slots=True)
class RateLab:
    """Makes benches and keeps them, so that figures which need the same run share it."""

    options: RateOptions
    progress: ReplayProgress
    _benches: dict[tuple[Machine, Dataset, float, float, int | None], Bench] = field(init=False, default_factory=dict)

    def bench(self, scene: Scene, dataset: Dataset, rate: float) -> Bench:
        machine, wave_size = self.machine(scene), scene.wave_size
        duration_s = self.options.duration
        if scene.num_requests is not None:
            duration_s = min(duration_s, scene.num_requests / rate)
        key = machine, dataset, rate, duration_s, wave_size
        if key not in self._benches:
            size = 0 if wave_size == 0 else max(wave_size or 1, round(duration_s * BACKLOG_PER_S))
            prompts = uniform_backlog(size, random.Random(f"backlog:{SEED}"), OFFLINE_PROMPT, OFFLINE_OUTPUT)
            requests = dataset.arrivals(rate, duration_s, SEED, self.options.preambles)
            load = Load(requests, prompts, duration_s, wave_size or None)
            self._benches[key] = Bench(machine, load, self.progress, planners=FittedModels(machine))
        return self._benches[key]

    def machine(self, scene: Scene) -> Machine:
        """Raises BadParameter for an unknown model."""
        model, options = self.options.model or scene.model, self.options
        if model not in MACHINES:
            raise typer.BadParameter(f"unknown model {model!r}; known: {', '.join(MACHINES)}")
        kv_blocks = options.kv_blocks or scene.kv_blocks
        return replace(MACHINES[model], max_num_batched_tokens=options.chunk, kv_blocks=kv_blocks)

    def rates(self, scene: Scene) -> Sequence[float]:
        return sorted(self.options.rate or scene.rates)

    def where(self, scene: Scene) -> str:
        """For captions."""
        machine, options = self.machine(scene), self.options
        blocks = "" if machine.kv_blocks is None else f", {machine.kv_blocks:,} KV blocks"
        length = f"{options.duration:g} s" if scene.num_requests is None else f"{scene.num_requests} requests"
        return f"{machine_name(machine)}, {options.chunk} tokens a step{blocks}, {length}"
