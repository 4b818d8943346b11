"""``slackwater plan``: what to buy, and what offline work it does beside."""

import msgspec
import typer
from rich.console import Console

from loadgen.cli import errors_as_lines, is_shown, write_result
from loadgen.options import WorkloadOptions
from loadgen.report.slo import Slo
from services.local.stack.options import deadlines_of
from services.profiler.capacity.asked import PlanOptions
from services.profiler.capacity.picture import draw_plan, require_drawable
from services.profiler.capacity.progress import plan_progress_on
from services.profiler.capacity.record import CapacityPlan, DevicePlan
from services.profiler.capacity.side_by_side import SideBySide
from services.profiler.capacity.table import print_plan
from services.profiler.capacity.workload import PlannedWorkload
from services.profiler.simulation.cli import (
    ClientsOption,
    ExecutorOptions,
    ModelNameOption,
    run_until_stopped,
    value_errors_as_named,
)
from services.profiler.simulation.setup import LIVE
from shared.scheduling.strategy import Strategy
from shared.settings.command_options import with_option_groups

EXIT_NOTHING_FOUND = 3


@with_option_groups
def plan(
    workload: WorkloadOptions,
    planning: PlanOptions,
    limits: ExecutorOptions,
    strategy: Strategy,
    model: ModelNameOption = LIVE.sim_model,
    clients: ClientsOption = 1,
) -> None:
    """Say how many GPUs of each device keep the SLOs of a trace's online requests, and what offline work they do.

    First the trace's busiest minutes, online requests alone, on one executor, two and so on, until every SLO is kept.
    Then the whole window on those, with the most offline work beside that keeps the SLOs, and how long a backlog takes
    there and on machines of its own. All of it is simulated. The exit status is 3 where a device has no answer.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console), value_errors_as_named():
        if planning.plot is not None:
            require_drawable(planning.plot)
        slos = planning.slos()
        kept = _kept(strategy, slos)
        planned = planning.workload(workload, model, clients)
        if planned.whole.prompts and not strategy.serves_offline:
            raise ValueError(f"preset {strategy.preset} serves no offline work: leave --offline out, or take another")
        jobs = planning.jobs(model, limits, kept, planned)
        with plan_progress_on(console, is_shown(planning.progress)) as progress:
            devices = SideBySide(jobs, progress)
            stopped_by = run_until_stopped(devices.run)
        record = plan_record(model, kept, slos, planned, devices.plans, stopped_by is not None)
        write_result(record, planning.json_file, lambda tables: print_plan(tables, record))
        if planning.plot is not None:
            draw_plan(record, planning.plot)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if any(device.problem for device in record.devices):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def plan_record(
    model: str,
    strategy: Strategy,
    slos: list[Slo],
    workload: PlannedWorkload,
    devices: list[DevicePlan],
    partial: bool,
) -> CapacityPlan:
    """What was asked, with the answers."""
    whole = workload.whole
    return CapacityPlan(
        model=model,
        preset=strategy.preset,
        changes=strategy.changes(),
        slos=[slo.expr for slo in slos],
        trace=whole.trace or "",
        prompts=whole.prompt_file,
        requests=len(whole.requests),
        start_s=whole.scaling.start_s,
        window_s=workload.window_s,
        peak_start_s=workload.peak_start_s,
        peak_s=workload.peak_s,
        peak_requests=len(workload.peak.requests),
        seed=whole.scaling.seed,
        devices=devices,
        partial=partial,
    )


def _kept(strategy: Strategy, slos: list[Slo]) -> Strategy:
    """Its deadlines those of the SLOs where it goes by deadlines, as a stack that is given SLOs does. Raises ValueError
    for an SLO that is no deadline."""
    if not strategy.uses_deadlines:
        return strategy
    ttft_ms, tpot_ms = deadlines_of(slos)
    bounds = {"ttft_slo_ms": ttft_ms, "tpot_slo_ms": tpot_ms}
    return msgspec.structs.replace(strategy, **{name: ms for name, ms in bounds.items() if ms is not None})
