"""Offline throughput when plans are made with ever worse latency models (HyGen figure 14)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.figures.metrics import Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK, Curve, Panel, draw
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns, Table
from benchmarks.lab.lab import HYGEN, ONLINE_ONLY, SARATHI, Bench, System, latency_of
from benchmarks.lab.outcome import Found
from benchmarks.lab.samples import sweep_batches, timed, window_of
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from shared.latency.linear import LinearLatencyModel
from shared.protocol.latency_models import FittedModel

OWN, OTHER, DISTORTED = "fitted here", "fitted elsewhere", "fitted here, then distorted"
STYLES = {OWN: ("o", BLUE), OTHER: ("s", ORANGE), DISTORTED: ("^", PINK)}
Model = tuple[str, str, FittedModel | None]  # with its name and kind; None where there is too little to fit it to


@dataclass(frozen=True, slots=True)
class Planner:
    """``kind``: a line of the picture; ``error``: of the model, in the mean, as a share; ``ratio``: of the SLO's metric
    to online only."""

    name: str
    kind: str
    error: float
    found: Found
    ratio: float
    exact: Found

    @property
    def throughput(self) -> float:
        return self.found.measured.offline_tokens_per_s

    @property
    def share(self) -> str:
        most = self.exact.measured.offline_tokens_per_s
        return f"{self.throughput / most:.0%}" if most else "-"


COLUMNS: Columns[Planner] = {
    "planned with": lambda planner: planner.name,
    "MAPE": lambda planner: f"{100 * planner.error:.1f}%",
    "budget ms": lambda planner: planner.found.text,
    "p99 TBT": lambda planner: f"{planner.ratio:.3f}x",
    "offline tokens/s": lambda planner: f"{planner.throughput:,.0f}",
    "of that without error": lambda planner: planner.share,
}


def worse_models(
    lab: TraceLab,
    setting: Setting,
    elsewhere: Sequence[Setting],
    distortions: Sequence[float],
    metric: Metric,
    tolerance: float,
) -> Result:
    """``elsewhere``: whose steps other models are fitted to; ``distortions``: sigmas of a lognormal factor on each
    coefficient."""
    bench, slo = lab.bench(setting), metric.slo(tolerance)
    exact = bench.largest(HYGEN, [slo])
    live = _samples(bench, HYGEN, exact.value)
    planners = [Planner("what steps take", "", 0.0, exact, metric.ratio(bench, exact.measured), exact)]
    for name, kind, model in _models(lab, bench, window_of(live).observations(), elsewhere, distortions):
        if model is not None:
            bench.planners[name] = model
            found = bench.largest(replace(HYGEN, planner=name), [slo])
            ratio = metric.ratio(bench, found.measured)
            planners.append(Planner(name, kind, mean_relative_error(model, live), found, ratio, exact))
    caption = f"Under {slo}, each model with the budget that the profiler finds for it. {lab.where([setting])}."
    picture = draw([[_panel(planners)]], 3.2, "mean absolute percentage error of the model that plans (%)")
    return Result([Table.of(caption, COLUMNS, planners)], picture)


def _panel(planners: Sequence[Planner]) -> Panel:
    most = [0.0, max(100 * planner.error for planner in planners)]
    curves = [Curve("no error", most, [planners[0].throughput] * 2, GREY, "--")]
    for kind, (style, colour) in STYLES.items():
        of_kind = [planner for planner in planners if planner.kind == kind]
        errors = [100 * planner.error for planner in of_kind]
        curves.append(Curve(kind, errors, [planner.throughput for planner in of_kind], colour, style))
    return Panel(curves, ylabel="offline tokens/s")


def _models(
    lab: TraceLab,
    bench: Bench,
    live: Sequence[Observation],
    elsewhere: Sequence[Setting],
    distortions: Sequence[float],
) -> Iterator[Model]:
    linear = fit_linear(live)
    yield "boosted, this workload", OWN, fit_boosted(live)
    yield "linear, this workload", OWN, linear
    yield "linear, the sweep", OWN, fit_linear(timed(sweep_batches(bench), latency_of(bench.machine)))
    yield "linear, online only", OWN, fit_linear(window_of(_samples(bench, ONLINE_ONLY)).observations())
    for setting in elsewhere:
        there = window_of(_samples(lab.bench(setting), SARATHI)).observations()
        yield f"linear, {setting.name}", OTHER, fit_linear(there)
    for sigma in distortions:
        yield f"linear, distorted by {sigma:g}", DISTORTED, distorted(linear, sigma) if linear else None


def _samples(bench: Bench, system: System, value: float | None = None) -> list[Observation]:
    return timed(bench.shapes(system, value), latency_of(bench.machine))


def distorted(model: LinearLatencyModel, sigma: float, seed: int = 0) -> LinearLatencyModel:
    """Each coefficient times a lognormal factor; the same seed draws the same."""
    rng = random.Random(f"{seed}:{sigma}")
    return LinearLatencyModel(*(each * rng.lognormvariate(0.0, sigma) for each in model.coefficients()))
