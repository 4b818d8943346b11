"""``slackwater profile`` on a GPU that is not there: a search over simulated runs."""

import time

from rich.console import Console

from loadgen.cli import is_shown
from loadgen.options import WorkloadOptions
from services.profiler.simulation.options import MachineOptions, value_errors_as_named
from services.profiler.simulation.stopping import run_until_stopped
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.options import SearchOptions
from services.profiler.slo.progress import trial_progress_on
from services.profiler.slo.search import SloSearch
from services.profiler.slo.simulated import SimulatedTrials
from services.profiler.slo.trials import run_search
from services.profiler.slo.workload import workload_facts
from shared.protocol.slo_profile import SloProfileRecord
from shared.scheduling.strategy import Strategy


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
        prepared = SimulatedWorkload(plan, setup, clients, num_executors=hardware.executors)
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
