"""The figures by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.page import Result
from benchmarks.hygen import budgets, chunks, fig3, fig4, fig5, fig6, fig7, fig8, fig11, fig12, fig14, fig15
from benchmarks.hygen.lab import Lab


@dataclass(frozen=True, slots=True)
class Entry:
    """``files``: the fields of ``Inputs`` that it needs."""

    make: Callable[[Lab], Result]
    about: str
    files: tuple[str, ...] = ("online", "offline")


# Figures that need the same runs stand together.
FIGURES = {
    "fig3": Entry(fig3.make, "Interference against tolerance for four metrics."),
    "fig4": Entry(fig4.make, "Offline throughput under each SLO: hygen, hygen-star, sarathi++, online only."),
    "fig7": Entry(fig7.make, "The profiler's budget against budget = mean TBT SLO."),
    "fig8": Entry(fig8.make, "Throughput over time."),
    "fig11": Entry(fig11.make, "Two SLOs at once."),
    "fig5": Entry(fig5.make, "Error of the latency predictor on batches that it never saw."),
    "fig14": Entry(fig14.make, "Plans made with ever worse latency models."),
    "fig15": Entry(fig15.make, "Growing online rates at 5% p99 TBT tolerance."),
    "fig6": Entry(fig6.make, "Prefix sharing maximization on MMLU.", ("online", "shots", "questions")),
    "fig12": Entry(fig12.make, "A trace of long prompts and Mistral-7B.", ("long_online", "offline")),
    "chunks": Entry(chunks.make, "Not in the paper: the gain over hygen-star by chunk size."),
    "budgets": Entry(budgets.make, "Not in the paper: offline throughput by latency budget."),
}
