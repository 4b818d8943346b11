"""What was chosen on one run of a workload, on runs that it was not chosen on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.figures.trace_lab import Metric, Setting, TraceLab
from benchmarks.harness.charts import Curves, Point, Style, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from benchmarks.lab.lab import SARATHI, SEED, Bench, System
from benchmarks.lab.outcome import Found
from benchmarks.lab.samples import run_samples, window_of
from services.predictor.boosted_fit import fit_boosted
from shared.pictures import BLUE, GREEN, GREY, ORANGE

CHOSEN_ON, ANOTHER_WINDOW, ANOTHER_SEED, ANOTHER_TRACE = "chosen on", "another window", "another seed", "another trace"
UNSEEN_STYLES: dict[str, Style] = {
    CHOSEN_ON: ("o", GREY),
    ANOTHER_WINDOW: ("o", BLUE),
    ANOTHER_SEED: ("s", GREEN),
    ANOTHER_TRACE: ("^", ORANGE),
}
HYGEN = System.of("hygen", "boosted, run")  # fitted to the steps of the run that budgets are chosen on


@dataclass(frozen=True, slots=True)
class Unseen:
    """A run with a budget that was found on another; ``ratio``: of its metric, to online only there."""

    kind: str
    name: str
    ratio: float
    offline_tokens_per_s: float

    def cells(self, metric: Metric, found: Found, tolerance: float) -> Row:
        return {
            "metric": metric.label,
            "budget ms": found.text,
            "run": self.name,
            "reached": f"{self.ratio:.3f}x",
            "SLO": "kept" if self.keeps(tolerance) else "BROKEN",
            "offline tokens/s": f"{self.offline_tokens_per_s:,.0f}",
        }

    def keeps(self, tolerance: float) -> bool:
        return self.ratio <= 1 + tolerance


def unseen(
    lab: TraceLab,
    setting: Setting,
    other_trace: Setting,
    metrics: Sequence[Metric],
    tolerance: float,
    num_windows: int,
    num_seeds: int,
) -> Result:
    """Budgets of hygen, each found for one SLO on the options' window, and kept for the windows after it, for requests
    that are drawn by other seeds, and for another trace; plans are made with a model of the first run's steps."""
    chosen_on = lab.bench(setting)
    model = fit_boosted(window_of(run_samples(chosen_on, SARATHI)).observations())
    assert model is not None, "LightGBM cannot be loaded"
    places = list(_places(lab, setting, other_trace, num_windows, num_seeds))
    for _, _, bench in places:
        bench.planners[HYGEN.planner] = model
    points, rows, shares = list[Point](), list[Row](), list[Row]()
    for metric in metrics:
        found = chosen_on.largest(HYGEN, [metric.slo(tolerance)])
        runs = [_run(kind, name, bench, metric, found) for kind, name, bench in places]
        for number, run in enumerate(runs):
            values = {"ratio to online only": run.ratio}
            points.append(Point("", metric.label, run.kind, number, values, {}))
            rows.append(run.cells(metric, found, tolerance))
        shares.append(_shares(metric, found, runs, tolerance))
    caption = f"Budgets for {tolerance:.0%} of interference, found on the first run. {lab.where([setting])}."
    curves = Curves("run", UNSEEN_STYLES, bounds={"SLO": lambda x: 1 + tolerance}, from_zero=False)
    tables = [Table(caption, shares), Table("Each run.", rows)]
    return Result(tables, draw(curves.panels(points), 2.8, "run"))


def _places(
    lab: TraceLab, setting: Setting, other_trace: Setting, num_windows: int, num_seeds: int
) -> Iterator[tuple[str, str, Bench]]:
    """The run that budgets are chosen on comes first."""
    yield CHOSEN_ON, CHOSEN_ON, lab.bench(setting)
    for number in range(1, num_windows + 1):
        start_s = number * lab.options.duration
        yield ANOTHER_WINDOW, f"{start_s:g} s later", lab.bench(replace(setting, start_s=start_s))
    for number in range(1, num_seeds + 1):
        yield ANOTHER_SEED, f"seed {SEED + number}", lab.bench(replace(setting, seed=SEED + number))
    yield ANOTHER_TRACE, ANOTHER_TRACE, lab.bench(other_trace)


def _run(kind: str, name: str, bench: Bench, metric: Metric, found: Found) -> Unseen:
    measured = bench.online_only if found.value is None else bench.run(HYGEN, found.value)
    return Unseen(kind, name, metric.ratio(bench, measured), measured.offline_tokens_per_s)


def _shares(metric: Metric, found: Found, runs: Sequence[Unseen], tolerance: float) -> Row:
    """How often the SLO was kept, where it was not chosen."""
    first, *others = runs
    cells = {"metric": metric.label, "budget ms": found.text, CHOSEN_ON: f"{first.ratio:.3f}x"}
    for kind in (ANOTHER_WINDOW, ANOTHER_SEED, ANOTHER_TRACE):
        own = [run for run in others if run.kind == kind]
        cells[f"{kind}: kept"] = f"{sum(run.keeps(tolerance) for run in own)} of {len(own)}"
        cells[f"{kind}: worst"] = f"{max(run.ratio for run in own):.3f}x"
    return cells
