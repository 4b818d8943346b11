"""What many runs have come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console

from tests.faults import report
from tests.faults.summary import Summary
from tests.simulation.run import Order, Outcome


@dataclass
class Totals:
    """``wrong``: the runs that broke something."""

    hours: float = 0.0
    cpu_s: float = 0.0
    num_runs: int = 0
    digest: str = ""  # of the last run's log
    summary: Summary = field(default_factory=Summary)
    wrong: list[Order] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.hours += outcome.hours
        self.cpu_s += outcome.cpu_s
        self.num_runs += 1
        self.digest = outcome.digest
        self.summary.merge(outcome.summary)
        if outcome.violations:
            self.wrong.append(outcome.order)

    def show(self, console: Console, wall_s: float) -> None:
        """The tables."""
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
        seeds = ", ".join(str(order.seed) for order in self.wrong) or "none"
        console.print(f"wrong seeds: {seeds}", highlight=False)
