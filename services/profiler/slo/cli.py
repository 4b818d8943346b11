"""``slackwater profile``: the options of a search, one by runs on a GPU that is not there, and progress on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from loadgen.cli import is_shown
from loadgen.errors import SloError
from loadgen.options import JsonFileOption, ProgressOption, WorkloadOptions
from loadgen.progress import NoProgress, ReplayProgress, bars_on
from loadgen.report.slo import Slo, parse_slo
from services.profiler.simulation.cli import MachineOptions, run_until_stopped, value_errors_as_named
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.search import DEFAULT_PRECISION, SloSearch
from services.profiler.slo.simulated import SimulatedTrials, run_search
from services.profiler.slo.workload import workload_facts
from shared.protocol.profiling.slo_profile import SloProfileRecord
from shared.scheduling.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What to keep, how exactly to search, and where to show it."""

    slo: Annotated[
        list[str] | None,
        typer.Option(help="ttft_p99<=800ms, or tbt_mean<=1.05x of online only; repeatable: all are kept."),
    ] = None
    precision: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="How far apart the values are that are tried: 0.05 is 5%.")
    ] = DEFAULT_PRECISION
    json_file: JsonFileOption = None
    progress: ProgressOption = None

    def slos(self) -> list[Slo]:
        """Raises SloError where there are none, or one cannot be understood."""
        if not self.slo:
            raise SloError("nothing to keep: give --slo, for example --slo 'ttft_p99<=800ms'")
        return [parse_slo(expr) for expr in self.slo]


def profile_simulated(
    workload: WorkloadOptions,
    machine: MachineOptions,
    strategy: Strategy,
    clients: int,
    searching: SearchOptions,
    model: str,
    duration_s: float,
    console: Console,
) -> tuple[SloProfileRecord, int | None]:
    """What was found, or known when a signal came, and its number. Raises LoadgenError for input that cannot be."""
    slos = searching.slos()
    with value_errors_as_named():
        hardware = machine.machine(model)
        setup = hardware.setup(strategy, workload.seed)
        plan = workload.plan(duration_s, setup.spec.model)
        prepared = SimulatedWorkload(plan, setup, clients, num_executors=hardware.executors, num_strict=hardware.strict)
        for note in prepared.notes:
            console.print(f"note: {note}", markup=False)
        with trial_progress_on(console, is_shown(searching.progress)) as bar:
            trials = SimulatedTrials(prepared, setup, duration_s, bar)
            search = SloSearch(slos, trials.knob, searching.precision)
            stopped_by = run_until_stopped(lambda: run_search(search, trials))
    lengths = [(prompt.num_tokens, prompt.max_tokens) for prompt in prepared.backlog.prompts]
    facts = workload_facts(plan.trace or "", prepared.requests, duration_s, plan.prompt_file or "", lengths)
    record = search.record(f"{setup.spec.model}-{setup.spec.device}", facts, "simulator", time.time(), why="asked")
    return record, stopped_by


class TrialProgress(NoProgress):
    """The run under way: a bar of its online requests, since those make its length, or a line when it begins."""

    def __init__(self, console: Console, bar: Progress | None) -> None:
        self._console = console
        self._bar = bar
        self._task = bar.add_task("", total=None, facts="") if bar else TaskID(0)
        self._num_runs = 0

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._num_runs += 1
        title = f"run {self._num_runs}: {name}"
        if self._bar:
            self._bar.reset(self._task, total=num_requests, description=title)
        else:
            self._console.print(title, markup=False)

    def online(self, sent: int, finished: int, failed: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=finished)


@contextmanager
def trial_progress_on(console: Console, shown: bool) -> Iterator[ReplayProgress]:
    """On the console, or nothing."""
    if not shown:
        yield NoProgress()
    elif not console.is_terminal:
        yield TrialProgress(console, None)
    else:
        with bars_on(console, transient=True) as bar:
            yield TrialProgress(console, bar)
