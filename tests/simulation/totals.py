"""What many runs have come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console

from tests.faults import report
from tests.faults.summary import Summary
from tests.simulation.faults import KINDS
from tests.simulation.records import Record
from tests.simulation.run import Order
from tests.simulation.traffic import MIXED


@dataclass
class Totals:
    """``wrong``: the runs that broke something."""

    hours: float = 0.0
    cpu_s: float = 0.0
    num_runs: int = 0
    digest: str = ""  # of the last run's log
    summary: Summary = field(default_factory=Summary)
    wrong: list[Order] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.hours += record.hours
        self.cpu_s += record.cpu_s
        self.num_runs += 1
        self.digest = record.digest
        self.summary.merge(record.summary())
        if record.violations:
            self.wrong.append(record.order)

    def show(self, console: Console, wall_s: float) -> None:
        """The tables, and how to run again what is wrong. ``wall_s``: of the runs that are not from a file."""
        console.print(report.table(self.summary))
        for line in report.totals(self.summary):
            console.print(line, highlight=False)
        speed = self.hours / self.cpu_s if self.cpu_s else 0.0
        console.print(
            f"{self.hours:.2f} virtual hours in {self.num_runs} runs, {self.cpu_s:.1f} s of processor time, "
            f"{wall_s:.1f} s by the clock: {speed:.4f} hours per second of a core ({speed * 3600:.0f} times as fast)",
            highlight=False,
        )
        if self.num_runs == 1:
            console.print(f"digest of the log: {self.digest}", highlight=False)
        for order in self.wrong:
            console.print(f"[red]seed {order.seed} is wrong[/red]: {command_of(order)}", soft_wrap=True)
        if not self.wrong:
            console.print("no seed is wrong")


def command_of(order: Order) -> str:
    """That runs it again."""
    words = [f"python -m tests.simulation --seed {order.seed} --hours {order.hours:g} --run-hours {order.hours:g}"]
    if order.faults == ():
        words.append("--faults none")
    elif order.kinds != tuple(KINDS):
        words.append(f"--faults {','.join(order.kinds) or 'none'}")
    if order.traffic != MIXED:
        words.append(f"--traffic {order.traffic}")
    if order.faults:
        words.append(f"--only {','.join(map(str, order.faults))}")
    return " ".join(words)
