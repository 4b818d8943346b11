"""A capacity plan as a table for a terminal: a column for each device."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from services.profiler.capacity.record import Backlog, BesideOnline, CapacityPlan, DevicePlan, PeakTrial
from services.profiler.slo.table import NAMES, UNITS
from shared.protocol.profiling.slo_profile import SloVerdict

UNKNOWN = "-"

Row = tuple[str, Callable[[DevicePlan], str]]


def print_plan(console: Console, plan: CapacityPlan) -> None:
    """What was asked, the answers, and what limits them."""
    for line in described(plan):
        console.print(line, soft_wrap=True, markup=False)
    console.print(plan_table(plan))
    for line in remarks(plan):
        console.print(line, soft_wrap=True, markup=False)


def described(plan: CapacityPlan) -> Iterator[str]:
    """Where the figures come from."""
    changes = "".join(f", {name} {value}" for name, value in plan.changes.items())
    yield f"{plan.model}, {plan.preset}{changes}; to keep: {', '.join(plan.slos)}"
    online = f"online: {plan.requests} requests of {Path(plan.trace).name} in {_span(plan.window_s)}"
    yield f"{online}; the busiest {_span(plan.peak_s)} from {plan.peak_start_s:.0f} s on: {plan.peak_requests}"
    yield f"offline: {Path(plan.prompts).name if plan.prompts else 'none'}"


def plan_table(plan: CapacityPlan) -> Table:
    """Sections: what to buy, what it does beside, how long a backlog takes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for device in plan.devices:
        table.add_column(device.device, justify="right")
    sections = [("online alone at the peak", _least_rows(plan))]
    if any(device.beside for device in plan.devices):
        sections.append((f"{_span(plan.window_s)} beside offline work", _beside_rows(plan)))
    backlog = next((device.backlog for device in plan.devices if device.backlog), None)
    if backlog:
        sections.append((f"a backlog of {backlog.requests} requests", list(_backlog_rows())))
    for title, rows in sections:
        table.add_row(title, style="bold")
        for name, cell in rows:
            table.add_row(f"  {name}", *(cell(device) for device in plan.devices))
    return table


def remarks(plan: CapacityPlan) -> Iterator[str]:
    """One line for each thing that limits what the plan says."""
    for device in plan.devices:
        if device.problem:
            yield f"{device.device}: {device.problem}"
    notes = dict.fromkeys(note for device in plan.devices for note in device.notes)
    yield from (f"note: {note}" for note in notes)
    if plan.partial:
        yield "stopped: this is what was known by then"


def _least_rows(plan: CapacityPlan) -> list[Row]:
    least = _of_least
    return [
        ("executors", least(lambda trial: str(trial.executors))),
        ("GPUs of an executor (TP)", least(_gpus_each)),
        ("GPUs", least(lambda trial: str(trial.gpus))),
        *((f"{expr}, ms", least(_figure(expr))) for expr in plan.slos),
        ("one executor fewer", lambda device: one_fewer(device)),
    ]


def _gpus_each(trial: PeakTrial) -> str:
    stages = trial.gpus // trial.executors // trial.tensor_parallel
    return f"{trial.tensor_parallel}" if stages == 1 else f"{stages} stages of {trial.tensor_parallel}"


def one_fewer(device: DevicePlan) -> str:
    """What breaks then: the evidence that there are no fewer."""
    least = device.least
    if least is None:
        return UNKNOWN
    fewer = (least.executors - 1, least.tensor_parallel)
    trial = next((each for each in device.trials if (each.executors, each.tensor_parallel) == fewer), None)
    if trial is None:
        return "none"
    if trial.lost:
        return f"{trial.lost} lost after {trial.lost_after_s:.0f} s"
    missed = [f"{each.expr}: {number(each.value_ms)}" for each in trial.verdicts if not each.met]
    return ", ".join(missed) or "requests failed"


def _beside_rows(plan: CapacityPlan) -> list[Row]:
    beside = _of_beside
    knobs = {device.beside.knob for device in plan.devices if device.beside and device.beside.knob}
    return [
        *((f"{NAMES[knob]}, {UNITS[knob]}", beside(lambda found: number(found.value))) for knob in sorted(knobs)),
        *((f"{expr}, ms", beside(_window_figure(expr))) for expr in plan.slos),
        *((f"{expr}, ms, at its peak", beside(_busiest_figure(expr))) for expr in plan.slos),
        ("offline requests/s", beside(lambda found: number(found.offline_requests_per_s))),
        ("offline tokens/s", beside(lambda found: number(found.offline_tokens_per_s))),
        ("of them generated", beside(lambda found: number(found.offline_output_tokens_per_s))),
    ]


def _backlog_rows() -> Iterator[Row]:
    def of(cell: Callable[[Backlog], str]) -> Callable[[DevicePlan], str]:
        return lambda device: UNKNOWN if device.backlog is None else cell(device.backlog)

    yield "hours beside online work", of(lambda backlog: number(backlog.beside_h))
    yield "GPU-hours on machines of its own", of(lambda backlog: number(backlog.alone_gpu_hours))
    yield "GPUs of its own that are as fast", of(lambda backlog: number(backlog.gpus_spared))


def _of_least(cell: Callable[[PeakTrial], str]) -> Callable[[DevicePlan], str]:
    return lambda device: UNKNOWN if device.least is None else cell(device.least)


def _of_beside(cell: Callable[[BesideOnline], str]) -> Callable[[DevicePlan], str]:
    return lambda device: UNKNOWN if device.beside is None else cell(device.beside)


def _figure(expr: str) -> Callable[[PeakTrial], str]:
    return lambda trial: _value(trial.verdicts, expr)


def _window_figure(expr: str) -> Callable[[BesideOnline], str]:
    return lambda found: _value(found.window, expr)


def _busiest_figure(expr: str) -> Callable[[BesideOnline], str]:
    return lambda found: _value(found.busiest, expr)


def _value(verdicts: list[SloVerdict], expr: str) -> str:
    return next((number(verdict.value_ms) for verdict in verdicts if verdict.expr == expr), UNKNOWN)


def number(value: float | None) -> str:
    """Three digits that matter below 100, whole numbers above."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _span(seconds: float) -> str:
    """As people say it."""
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:g} s"
