"""Benches whose online requests are a window of a trace, beside a backlog from a file; and what systems reach there
under an SLO on one of the online latencies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Self

import typer

from benchmarks.lab.drawn import DurationOption, OfflineOption, OnlineOption
from benchmarks.lab.lab import SARATHI, SEED, STAR, Bench, Load, Machine, System, machine_name
from benchmarks.lab.outcome import Found, Measured
from benchmarks.lab.samples import BOOSTED, FittedModels
from loadgen.progress import ReplayProgress
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace

GIVEN = "files are checked before the first figure"
TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5)  # of interference: an SLO of 1.05x to 1.5x of online-only
FITTED = System.of("hygen", BOOSTED)  # plans with a model that was fitted to other steps, with noise
NO_SLO, OURS, THEIRS = "sarathi++ (no SLO)", "hygen", "hygen-star"
BACKLOG_PER_S, OTHER_BACKLOG_PER_S = 4, 80  # more than any of the machines finishes; the other backlog's are short


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """A file may be None where no figure needs it. ``tolerance``: of interference; None is ``TOLERANCES``."""

    online: OnlineOption = None
    offline: OfflineOption = None
    long_online: Annotated[Path | None, typer.Option(metavar="TRACE", help="Arrivals with long prompts: Mooncake.")] = (
        None
    )
    other_offline: Annotated[
        Path | None, typer.Option(metavar="LENGTHS", help="Another backlog: GSM8K's questions.")
    ] = None
    shots: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's dev questions.")] = None
    questions: Annotated[Path | None, typer.Option(metavar="JSONL", help="MMLU's test questions.")] = None
    start: Annotated[float, typer.Option(min=0.0, help="Skip so many seconds of the trace.")] = 0.0
    duration: DurationOption = 900.0
    tolerance: Annotated[list[float] | None, typer.Option(min=0.0, help=f"Repeatable. Default: {TOLERANCES}.")] = None
    precision: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="From one budget or rate tried to the next, as a share.")
    ] = 0.04

    @property
    def tolerances(self) -> list[float]:
        return sorted(self.tolerance or TOLERANCES)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on its GPUs, and the requests/s sampled from the trace. ``has_long``: of the one with long prompts;
    ``has_other``: beside the other backlog; ``start_s``: of its window, after that of the options; ``seed``: by which
    the requests are drawn."""

    machine: Machine
    qps: float
    has_long: bool = False
    has_other: bool = False
    start_s: float = 0.0
    seed: int = SEED

    @property
    def name(self) -> str:
        return machine_name(self.machine)


@dataclass
class TraceLab:
    """Makes benches and keeps them, so that figures which need the same run share it."""

    options: TraceOptions
    progress: ReplayProgress
    _benches: dict[Setting, Bench] = field(init=False, default_factory=dict)
    _backlogs: dict[Path, list[OfflinePrompt]] = field(init=False, default_factory=dict)

    def bench(self, setting: Setting) -> Bench:
        """The trace sampled to the setting's rate, beside the offline file's prompts. Raises LoadgenError."""
        if setting not in self._benches:
            self._benches[setting] = self.bench_with(setting, self._backlog(setting), self.options.duration)
        return self._benches[setting]

    def bench_with(self, setting: Setting, prompts: Sequence[OfflinePrompt], duration_s: float) -> Bench:
        """Beside ``prompts``, shared with no other figure. Raises LoadgenError."""
        options = self.options
        trace = options.long_online if setting.has_long else options.online
        assert trace is not None, GIVEN
        start_s = options.start + setting.start_s
        scaling = Scaling(start_s=start_s, duration_s=duration_s, qps=setting.qps, seed=setting.seed)
        load = Load(scaling.apply(read_trace(trace)), prompts, duration_s)
        return Bench(setting.machine, load, self.progress, options.precision, FittedModels(setting.machine))

    def where(self, settings: Iterable[Setting], duration_s: float | None = None) -> str:
        """For captions: rates, and the window of the trace."""
        rates = ", ".join(f"{setting.name} at {setting.qps:g} online requests/s" for setting in settings)
        return f"{rates}; {duration_s or self.options.duration:g} s of the trace from {self.options.start:g} s on"

    def _backlog(self, setting: Setting) -> list[OfflinePrompt]:
        """The offline file's prompts, from the start again where they are too few."""
        file = self.options.other_offline if setting.has_other else self.options.offline
        assert file is not None, GIVEN
        if file not in self._backlogs:
            size = max(1, round(self.options.duration * (OTHER_BACKLOG_PER_S if setting.has_other else BACKLOG_PER_S)))
            self._backlogs[file] = list(islice(cycle(load_backlog(file)), size))
        return self._backlogs[file]


@dataclass(frozen=True, slots=True)
class Metric:
    """``name``: as in SLO expressions."""

    name: str
    label: str

    def slo(self, tolerance: float) -> str:
        """As people write it. ``tolerance``: of interference, as a share."""
        return f"{self.name}<={1 + tolerance:g}x"

    def ratio(self, bench: Bench, measured: Measured) -> float:
        """Its latency over the online-only run's."""
        return measured.latency_ms(self.name) / bench.online_only.latency_ms(self.name)


MEAN_TBT, P99_TBT = Metric("tbt_mean", "mean TBT"), Metric("tbt_p99", "p99 TBT")
MEAN_TTFT, P99_TTFT = Metric("ttft_mean", "mean TTFT"), Metric("ttft_p99", "p99 TTFT")
METRICS = (MEAN_TBT, P99_TBT, MEAN_TTFT, P99_TTFT)


@dataclass(frozen=True, slots=True)
class Kept:
    """What hygen and hygen-star reach under one SLO."""

    bench: Bench
    metric: Metric
    tolerance: float
    hygen: Found
    star: Found

    @classmethod
    def of(cls, bench: Bench, metric: Metric, tolerance: float) -> Self:
        hygen, star = (bench.largest(system, [metric.slo(tolerance)]) for system in (FITTED, STAR))
        return cls(bench, metric, tolerance, hygen, star)

    @property
    def runs(self) -> dict[str, Measured]:
        """And sarathi++ without one."""
        return {NO_SLO: self.bench.run(SARATHI), THEIRS: self.star.measured, OURS: self.hygen.measured}

    def ratio(self, measured: Measured) -> float:
        """Of the SLO's metric, to online only."""
        return self.metric.ratio(self.bench, measured)

    def gain(self, measured: Measured) -> float:
        """Offline throughput over hygen-star's; not a number where that has none."""
        return measured.offline_tokens_per_s / (self.star.measured.offline_tokens_per_s or float("nan"))
