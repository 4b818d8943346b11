"""Latency models that err: by how much on batches that the predictor never saw (HyGen figure 5), and what offline
throughput is left when plans are made with ever worse ones (HyGen figure 14)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.figures.trace_lab import FITTED, Metric, Setting, TraceLab
from benchmarks.harness.charts import Curve, Curves, Panel, Point, Style, draw
from benchmarks.harness.command import Table
from benchmarks.harness.page import Result
from benchmarks.lab.fits import FITS, error_cells
from benchmarks.lab.lab import HYGEN, ONLINE_ONLY, SARATHI, Bench, setup_of
from benchmarks.lab.outcome import Found
from benchmarks.lab.samples import NOISE, run_samples, sweep_samples, window_of
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.pictures import BLUE, ORANGE, PINK
from shared.protocol.profiling.latency_models import FittedModel

SHOWN = 700  # points of each model
KINDS = ("linear", "boosted")
OWN, OTHER, DISTORTED = "fitted here", "fitted elsewhere", "fitted here, then distorted"
STYLES: dict[str, Style] = {OWN: ("o", BLUE), OTHER: ("s", ORANGE), DISTORTED: ("^", PINK)}
Model = tuple[str, str, FittedModel | None]  # with its name and kind; None where there is too little to fit it to


def prediction_error(
    lab: TraceLab, papers: dict[Setting, str], metric: Metric, tolerance: float, kinds: Sequence[str] = KINDS
) -> Result:
    """``papers``: what the paper reports of each setting; ``tolerance``: of ``metric``, in the run that is foretold;
    ``kinds``: of models, as in ``FITS``."""
    panels, rows = [], []
    for setting, reported in papers.items():
        bench = lab.bench(setting)
        truth = setup_of(setting.machine).latency
        live = run_samples(bench, FITTED, bench.largest(FITTED, [metric.slo(tolerance)]).value)
        seen, unseen = window_of(live[: len(live) // 2]).observations(), live[len(live) // 2 :]
        noise = fmean(abs(_error(truth, each)) for each in unseen)
        for fitted_to, samples in (("the sweep", sweep_samples(bench.machine)), ("the run's first half", seen)):
            cells = {"setting": bench.name, "fitted to": fitted_to, "samples": f"{len(samples):,}"}
            cells |= error_cells(samples, unseen, kinds)
            rows.append({**cells, "noise alone": f"{100 * noise:.2f}%", "paper": reported})
        panels.append(_panel(bench, seen, unseen, kinds))
    caption = (
        f"Mean absolute percentage error on the second half of a run of hygen under {metric.slo(tolerance)}, steps "
        f"timed with {100 * NOISE:g}% noise. {lab.where(papers)}."
    )
    return Result([Table(caption, rows)], draw([panels], 3.2, "step time (ms)"))


def _panel(bench: Bench, seen: Sequence[Observation], unseen: Sequence[Observation], kinds: Sequence[str]) -> Panel:
    shown = unseen[:: max(1, len(unseen) // SHOWN)]
    times_ms = [each.latency_ms for each in shown]
    curves = [
        Curve(name, times_ms, [100 * _error(model, each) for each in shown], colour, ".", opacity=0.6)
        for name, (fit, colour) in ((kind, FITS[kind]) for kind in kinds)
        if (model := fit(seen)) is not None
    ]
    return Panel(curves, bench.name, ylabel="error of the prediction (%)", from_zero=False)


def _error(model: LatencyModel, observation: Observation) -> float:
    return model.predict_ms(observation.shape) / observation.latency_ms - 1.0


def worse_models(
    lab: TraceLab,
    setting: Setting,
    elsewhere: Sequence[Setting],
    distortions: Sequence[float],
    metric: Metric,
    tolerance: float,
) -> Result:
    """``elsewhere``: whose steps other models are fitted to; ``distortions``: sigmas, as ``distorted`` takes them."""
    bench, slo = lab.bench(setting), metric.slo(tolerance)
    exact = bench.largest(HYGEN, [slo])
    most = exact.measured.offline_tokens_per_s
    live = run_samples(bench, HYGEN, exact.value)

    def point(name: str, kind: str, error: float, found: Found) -> Point:
        """``error``: of the model, in the mean, as a share."""
        throughput = found.measured.offline_tokens_per_s
        cells = {
            "planned with": name,
            "MAPE": f"{100 * error:.1f}%",
            "budget ms": found.text,
            metric.label: f"{metric.ratio(bench, found.measured):.3f}x",
            "offline tokens/s": f"{throughput:,.0f}",
            "of that without error": f"{throughput / most:.0%}" if most else "-",
        }
        return Point("", setting.name, kind, 100 * error, {"offline tokens/s": throughput}, cells)

    points = [point("what steps take", "", 0.0, exact)]
    for name, kind, model in _models(lab, bench, window_of(live).observations(), elsewhere, distortions):
        if model is not None:
            bench.planners[name] = model
            found = bench.largest(replace(HYGEN, planner=name), [slo])
            points.append(point(name, kind, mean_relative_error(model, live), found))
    xlabel = "mean absolute percentage error of the model that plans (%)"
    caption = f"Under {slo}, each model with the budget that the profiler finds for it. {lab.where([setting])}."
    return Curves(xlabel, STYLES, bounds={"no error": lambda x: most}).result(points, caption, 3.2)


def _models(
    lab: TraceLab, bench: Bench, live: Sequence[Observation], elsewhere: Sequence[Setting], distortions: Sequence[float]
) -> Iterator[Model]:
    linear = fit_linear(live)
    yield "boosted, this workload", OWN, fit_boosted(live)
    yield "linear, this workload", OWN, linear
    yield "linear, the sweep", OWN, fit_linear(sweep_samples(bench.machine))
    yield "linear, online only", OWN, fit_linear(window_of(run_samples(bench, ONLINE_ONLY)).observations())
    for setting in elsewhere:
        there = window_of(run_samples(lab.bench(setting), SARATHI)).observations()
        yield f"linear, {setting.name}", OTHER, fit_linear(there)
    for sigma in distortions:
        yield f"linear, distorted by {sigma:g}", DISTORTED, distorted(linear, sigma) if linear else None


def distorted(model: LinearLatencyModel, sigma: float) -> LinearLatencyModel:
    """Each coefficient times a lognormal factor; always the same ones."""
    rng = random.Random(f"0:{sigma}")
    return LinearLatencyModel(*(each * rng.lognormvariate(0.0, sigma) for each in model.coefficients()))
