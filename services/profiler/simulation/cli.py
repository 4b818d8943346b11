"""``slackwater simulate``: the command line of the simulator, and what the commands that simulate share."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from loadgen.cli import EXIT_NOTHING_DONE, did_something, errors_as_lines, is_shown, write_report
from loadgen.errors import WorkloadError
from loadgen.options import ReportOptions, WorkloadOptions
from loadgen.progress import progress_on
from loadgen.stopping import stopping_signals
from services.profiler.simulation.setup import LIVE, Machine
from services.profiler.simulation.simulation import Simulation
from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES
from shared.process.memory import collect_seldom
from shared.scheduling.strategy import Strategy
from shared.settings.command_options import with_option_groups

ModelNameOption = Annotated[str, typer.Option("--model", help=", ".join(ARCHITECTURES))]
ClientsOption = Annotated[
    int, typer.Option(min=1, help="Clients that the trace's requests are from, the k-th sending 1/k of the first's.")
]


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Which GPUs, and how many."""

    device: Annotated[str, typer.Option(help=", ".join(DEVICES))] = LIVE.sim_device
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the model.")] = 1
    executors: Annotated[int, typer.Option(min=1, help="Executors, alike, behind one router and one pool.")] = 1
    strict: Annotated[
        int, typer.Option(min=0, help="Of the executors: for what online requests generate; the others begin them all.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """The executors' limits, and how their steps are timed."""

    pipeline_depth: Annotated[int, typer.Option(min=1, help="Stages of an executor: steps that it has in flight.")] = 1
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one step: the chunk size; else as many as throughput asks.")
    ] = None
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Requests of one step; else likewise.")] = None
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")] = None
    host_kv_slots: Annotated[
        int | None,
        typer.Option(min=1, help="bidirectional: tokens of KV that the host takes; else as many as the GPU."),
    ] = None
    step_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A fitted latency model (JSON) that steps take, not the roofline."),
    ] = None
    plan_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A fitted latency model (JSON) to plan with; else what steps take."),
    ] = None
    interrupts: Annotated[
        bool,
        typer.Option("--interrupt/--no-interrupt", help="A step without online requests stops when one comes."),
    ] = True
    noise: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Sigma of a lognormal factor on each step's time.")
    ] = 0.0
    overlaps: Annotated[
        bool,
        typer.Option(
            "--overlap/--no-overlap",
            help="Decode attention runs beside matrices, as in NanoFlow and in none of our engines.",
        ),
    ] = False

    def machine(self, model: str, **gpus: str) -> Machine:
        """``gpus``: what of a Machine is no option here."""
        return Machine(model, **asdict(self), **gpus)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class MachineOptions(ExecutorOptions, GpuOptions):
    """All of a Machine but its model. Fields of the last base come first on the command line: the GPUs."""


@with_option_groups
def simulate(
    workload: WorkloadOptions,
    machine: MachineOptions,
    strategy: Strategy,
    reporting: ReportOptions,
    model: ModelNameOption = LIVE.sim_model,
    clients: ClientsOption = 1,
    duration: Annotated[float, typer.Option(help="Seconds of virtual time.")] = 3600.0,
) -> None:
    """Replay a production trace beside an offline backlog on a named GPU and model, in virtual time.

    Executors, schedulers, pool and router are the live system's; a step takes as long as a roofline model says. The
    report is that of replay.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console), value_errors_as_named():
        if strategy.missing_knob():
            raise ValueError(strategy.missing_knob())
        hardware = machine.machine(model)
        setup = hardware.setup(strategy, workload.seed)
        plan = workload.plan(duration, setup.spec.model, **reporting.plan_options())
        collect_seldom()
        with progress_on(console, is_shown(reporting.progress)) as bars:
            pools = hardware.executors, hardware.strict
            simulation = Simulation(plan, setup, hardware.url(strategy), bars, clients, *pools)
            stopped_by = run_until_stopped(simulation.run)
        report = simulation.report(stopped_by is not None) if simulation.phases else None
        if report is not None:
            write_report(report, reporting.json_file)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if report is None or not did_something(report):
        raise typer.Exit(EXIT_NOTHING_DONE)


@contextmanager
def value_errors_as_named() -> Iterator[None]:
    """The pure core's errors, as those of a workload that cannot be."""
    try:
        yield
    except ValueError as error:
        raise WorkloadError(str(error)) from error


class _Stopped(BaseException):
    """A signal came."""

    def __init__(self, number: int) -> None:
        self.number = number


def run_until_stopped(run: Callable[[], None]) -> int | None:
    """To the end, or to a signal that stops it, whose number is returned."""

    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    before = {each: signal.signal(each, stop) for each in stopping_signals()}
    try:
        run()
    except _Stopped as stopped:
        return stopped.number
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return None
