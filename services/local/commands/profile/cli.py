"""``slackwater profile``: the latency budget, or offline rate, that keeps the SLOs."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from loadgen.cli import errors_as_lines, write_result
from loadgen.errors import WorkloadError
from loadgen.options import WorkloadOptions
from services.local.commands.parameters import BusOptions, UrlOption
from services.local.commands.profile.live import newest_profiles, profile_live, profile_now, undo_live
from services.local.commands.server import server_url
from services.profiler.simulation.cli import ClientsOption, MachineOptions, ModelNameOption
from services.profiler.simulation.setup import LIVE
from services.profiler.slo.cli import SearchOptions, profile_simulated
from services.profiler.slo.table import print_profile
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.slo_profile import SloProfileRecord
from shared.scheduling.strategy import Strategy
from shared.settings.command_options import with_option_groups

EXIT_NOTHING_FOUND = 3
DURATION_S, LIVE_DURATION_S = 600.0, 120.0

DurationOption = Annotated[
    float | None, typer.Option("--duration", help="Seconds of each run; 600 simulated, 120 live.", show_default=False)
]
LiveOption = Annotated[bool, typer.Option("--live", help="Run the workload on a running stack, and set its budget.")]
NowOption = Annotated[bool, typer.Option("--now", help="Ask the stack's profiler to search anew, and wait for it.")]
UndoOption = Annotated[
    bool, typer.Option("--undo", help="Give the stack the budget again that it had before --live found one.")
]


@with_option_groups
def profile(
    workload: WorkloadOptions,
    machine: MachineOptions,
    strategy: Strategy,
    searching: SearchOptions,
    stack: BusOptions,
    model: ModelNameOption = LIVE.sim_model,
    clients: ClientsOption = 1,
    duration: DurationOption = None,
    live: LiveOption = False,
    now: NowOption = False,
    undo: UndoOption = False,
    url: UrlOption = None,
) -> None:
    """Find the largest latency budget (hygen) or offline rate (hygen-star) that keeps every SLO.

    With --online and --offline: by runs of that workload, simulated on a named GPU and model, or with --live on a
    running stack. Without: show what a running stack has found, with --now let it search anew, or with --undo
    take back what --live has set.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    stopped_by: int | None = None
    with errors_as_lines(console):
        if undo:
            _tell(asyncio.run(undo_live(stack)))
            return
        if live:
            plan = workload.plan(LIVE_DURATION_S if duration is None else duration, None)
            address = server_url(url, stack.data_dir)
            record, stopped_by = asyncio.run(profile_live(stack, address, plan, searching, console))
            records = [record]
        elif workload.online or workload.offline:
            record, stopped_by = profile_simulated(
                workload,
                machine,
                strategy,
                clients,
                searching,
                model,
                DURATION_S if duration is None else duration,
                console,
            )
            records = [record]
        elif now:
            records = asyncio.run(profile_now(stack, searching.slo or []))
        elif searching.slo:
            raise WorkloadError("nothing to search with: give --online, --offline or both, or --now for a stack's own")
        else:
            records = asyncio.run(newest_profiles(stack))
        _write(records, searching.json_file, partial=stopped_by is not None)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if any(record.value is None for record in records):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _tell(budgets: list[BudgetRecord]) -> None:
    for budget in budgets:
        held_to = f"{budget.latency_budget_ms:g} ms" if budget.tolerance is None else f"{budget.tolerance:.0%} later"
        print(f"{budget.profile_key}: {held_to} again ({budget.source})")


def _write(records: list[SloProfileRecord], json_file: str | None, partial: bool) -> None:
    """A single record is no list."""

    def print_tables(console: Console) -> None:
        for record in records:
            print_profile(console, record, partial)

    write_result(records[0] if len(records) == 1 else records, json_file, print_tables)
