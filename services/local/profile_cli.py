"""``slackwater profile``: the latency budget, or offline rate, that keeps the SLOs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadgen.cli import STANDARD_OUTPUT, errors_as_lines
from loadgen.errors import WorkloadError
from loadgen.option_groups import WorkloadOptions, with_option_groups
from services.local.options import DEFAULT_DATA_DIR
from services.local.parameters import DataDirOption
from services.local.slo_profiles import newest_profiles, profile_now
from services.profiler.simulation.options import MachineOptions, ModelNameOption, StrategyOptions
from services.profiler.simulation.setup import LIVE
from services.profiler.slo.options import SearchOptions
from services.profiler.slo.simulated_cli import profile_simulated
from services.profiler.slo.table import print_profile
from shared.protocol.slo_profile import SloProfileRecord

EXIT_NOTHING_FOUND = 3

DurationOption = Annotated[float, typer.Option("--duration", help="Seconds of each run.")]
NowOption = Annotated[bool, typer.Option("--now", help="Ask the stack's profiler to search anew, and wait for it.")]
NatsOption = Annotated[str | None, typer.Option(help="Ask on this bus instead of a local stack's.")]


@with_option_groups
def profile(
    workload: WorkloadOptions,
    machine: MachineOptions,
    strategy: StrategyOptions,
    searching: SearchOptions,
    model: ModelNameOption = LIVE.sim_model,
    duration: DurationOption = 600.0,
    now: NowOption = False,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    nats: NatsOption = None,
) -> None:
    """Find the largest latency budget (hygen) or offline rate (hygen-star) that keeps every SLO.

    With --online and --offline: by simulated runs of that workload on a named GPU and model. Without: show what a
    running stack has found, or with --now let it search anew.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    stopped_by: int | None = None
    with errors_as_lines(console):
        if workload.online or workload.offline:
            record, stopped_by = profile_simulated(workload, machine, strategy, searching, model, duration, console)
            records = [record]
        elif now:
            records = asyncio.run(profile_now(data_dir, nats, searching.slo or []))
        else:
            records = asyncio.run(newest_profiles(data_dir, nats))
        _write(records, searching.json_file, partial=stopped_by is not None)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)
    if any(record.value is None for record in records):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _write(records: list[SloProfileRecord], json_file: str | None, partial: bool) -> None:
    """Tables on stdout and JSON in the file; or JSON on stdout alone. A single record is no list."""
    found: SloProfileRecord | list[SloProfileRecord] = records[0] if len(records) == 1 else records
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    console = Console(soft_wrap=False, highlight=False)
    for record in records:
        print_profile(console, record, partial)
    if json_file is not None:
        try:
            Path(json_file).write_text(text)
        except OSError as error:
            raise WorkloadError(f"cannot write {json_file}: {error.strerror}") from error
