"""``slackwater simulate``: the command line of the simulator."""

import typer
from rich.console import Console

from loadgen.cli import EXIT_NOTHING_DONE, did_something, errors_as_lines, is_shown, write_report
from loadgen.options import ReportOptions, WorkloadOptions
from loadgen.progress import progress_on
from services.profiler.simulation.options import (
    ClientsOption,
    MachineOptions,
    ModelNameOption,
    SimDurationOption,
    value_errors_as_named,
)
from services.profiler.simulation.setup import LIVE
from services.profiler.simulation.simulation import Simulation
from services.profiler.simulation.stopping import run_until_stopped
from shared.scheduling.strategy import Strategy
from shared.settings.command_options import with_option_groups


@with_option_groups
def simulate(
    workload: WorkloadOptions,
    machine: MachineOptions,
    strategy: Strategy,
    reporting: ReportOptions,
    model: ModelNameOption = LIVE.sim_model,
    clients: ClientsOption = 1,
    duration: SimDurationOption = 3600.0,
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
        with progress_on(console, is_shown(reporting.progress)) as bars:
            simulation = Simulation(plan, setup, hardware.url(strategy), bars, clients, hardware.executors)
            stopped_by = run_until_stopped(simulation.run)
        report = simulation.report(stopped_by is not None) if simulation.phases else None
        if report is not None:
            write_report(report, reporting.json_file)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if report is None or not did_something(report):
        raise typer.Exit(EXIT_NOTHING_DONE)
