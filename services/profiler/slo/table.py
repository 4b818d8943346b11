"""An SLO profile as a table for a terminal, and its answer in one line."""

from rich import box
from rich.console import Console
from rich.table import Table

from services.profiler.slo.search import ONLINE_ONLY, why_missed
from shared.protocol.profiling.slo_profile import Knob, SloProfileRecord, SloVerdict, Trial

NAMES = {Knob.BUDGET_MS: "latency budget", Knob.OFFLINE_QPS: "offline rate"}
UNITS = {Knob.BUDGET_MS: "ms", Knob.OFFLINE_QPS: "requests/s"}


def print_profile(console: Console, record: SloProfileRecord, partial: bool = False) -> None:
    """What was run, the runs by value, and the answer. ``partial``: the search was interrupted."""
    console.print(describe_workload(record), soft_wrap=True, markup=False)
    if record.trials:
        console.print(trial_table(record))
    if any(trial.backlog_ran_out for trial in record.trials):
        note = "note: the backlog ran out in a run, so that its load was light: give more prompts"
        console.print(note, soft_wrap=True, markup=False)
    console.print(answer(record, partial), soft_wrap=True, markup=False)


def describe_workload(record: SloProfileRecord) -> str:
    """Where the figures come from."""
    facts = record.workload
    told = f"{record.profile_key}, {record.runs_on}: {facts.requests} requests of {facts.source}"
    told += f" in {facts.duration_s:g} s{_lengths(facts.input_tokens_mean, facts.output_tokens_mean)}"
    if facts.offline:
        told += f", beside {facts.offline}"
    if facts.offline and facts.offline_input_tokens_mean:
        told += _lengths(facts.offline_input_tokens_mean, facts.offline_output_tokens_mean)
    return told


def trial_table(record: SloProfileRecord) -> Table:
    """A row for each run: each SLO's figure and whether it was kept, and what offline work got done."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{NAMES[record.knob]}, {UNITS[record.knob]}", justify="right")
    for verdict in record.best:
        bound = "" if verdict.bound_ms is None else f"\n{_number(verdict.bound_ms)} ms"
        table.add_column(f"{verdict.expr}{bound}", justify="right")
    table.add_column("offline tokens/s", justify="right")
    table.add_column("kept")
    for trial in sorted(record.trials, key=lambda trial: trial.value):
        style = "bold" if trial.value == record.value else "" if trial.met else "dim"
        value = "none" if trial.value == ONLINE_ONLY else _number(trial.value)
        cells = [_verdict(verdict) for verdict in trial.verdicts]
        table.add_row(value, *cells, _number(trial.offline_tokens_per_s), _kept(trial), style=style)
    return table


def answer(record: SloProfileRecord, partial: bool = False) -> str:
    """One line."""
    name, unit = NAMES[record.knob], UNITS[record.knob]
    if not record.trials:
        return "stopped before anything was measured"
    if not record.reachable:
        return f"cannot be kept even without offline work: {why_missed(record.trials[0])}"
    so_far = " so far" if partial else ""
    if record.value is None:
        return f"no {name} that lets offline work in kept the SLOs{so_far}; without offline work they are kept"
    tokens_per_s = next(trial.offline_tokens_per_s for trial in record.trials if trial.value == record.value)
    found = f"{record.value:g} {unit} ({_number(tokens_per_s)} offline tokens/s)"
    return f"largest {name} that keeps the SLOs{so_far}: {found}"


def _lengths(input_mean: float, output_mean: float) -> str:
    return f" ({input_mean:.0f} tokens in, {output_mean:.0f} out)"


def _verdict(verdict: SloVerdict) -> str:
    figure = "-" if verdict.value_ms is None else _number(verdict.value_ms)
    return f"{figure} {'✓' if verdict.met else '✗'}"


def _kept(trial: Trial) -> str:
    if trial.met:
        return "yes"
    return "NO" if trial.online_errors == 0 else f"NO, {trial.online_errors} errors"


def _number(value: float) -> str:
    """Four digits that matter below 1,000, whole numbers above."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
