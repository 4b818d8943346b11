"""The error of the latency predictor on batches that it never saw (HyGen figure 5)."""

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.figures.trace_lab import Metric, Setting, TraceLab
from benchmarks.harness.charts import BLUE, ORANGE, Curve, Panel, draw
from benchmarks.harness.command import Table
from benchmarks.harness.page import Result
from benchmarks.lab.lab import HYGEN, Bench, setup_of
from benchmarks.lab.samples import NOISE, run_samples, sweep_samples, window_of
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from shared.latency.model import LatencyModel
from shared.protocol.latency_models import FittedModel

SHOWN = 700  # points of each model
Fit = Callable[[Sequence[Observation]], FittedModel | None]  # None where the samples do not tell enough
FITS: dict[str, tuple[Fit, str]] = {"linear": (fit_linear, ORANGE), "boosted": (fit_boosted, BLUE)}


def prediction_error(lab: TraceLab, papers: dict[Setting, str], metric: Metric, tolerance: float) -> Result:
    """``papers``: what the paper reports of each setting; ``tolerance``: of ``metric``, in the run that is foretold."""
    panels, rows = [], []
    for setting, reported in papers.items():
        bench = lab.bench(setting)
        truth = setup_of(setting.machine).latency
        live = run_samples(bench, HYGEN, bench.largest(HYGEN, [metric.slo(tolerance)]).value)
        seen, unseen = window_of(live[: len(live) // 2]).observations(), live[len(live) // 2 :]
        noise = fmean(abs(_error(truth, each)) for each in unseen)
        for fitted_to, samples in (("the sweep", sweep_samples(bench)), ("the run's first half", seen)):
            cells = {"setting": bench.name, "fitted to": fitted_to, "samples": f"{len(samples):,}"}
            for name, (fit, _) in FITS.items():
                model = fit(samples)
                cells[name] = "" if model is None else f"{100 * mean_relative_error(model, unseen):.2f}%"
            rows.append({**cells, "noise alone": f"{100 * noise:.2f}%", "paper": reported})
        panels.append(_panel(bench, seen, unseen))
    caption = (
        f"Mean absolute percentage error on the second half of a run of hygen under {metric.slo(tolerance)}, steps "
        f"timed with {100 * NOISE:g}% noise. {lab.where(papers)}."
    )
    return Result([Table(caption, rows)], draw([panels], 3.2, "step time (ms)"))


def _panel(bench: Bench, seen: Sequence[Observation], unseen: Sequence[Observation]) -> Panel:
    shown = unseen[:: max(1, len(unseen) // SHOWN)]
    times_ms = [each.latency_ms for each in shown]
    curves = [
        Curve(name, times_ms, [100 * _error(model, each) for each in shown], colour, ".", opacity=0.6)
        for name, (fit, colour) in FITS.items()
        if (model := fit(seen)) is not None
    ]
    return Panel(curves, bench.name, ylabel="error of the prediction (%)", from_zero=False)


def _error(model: LatencyModel, observation: Observation) -> float:
    return model.predict_ms(observation.shape) / observation.latency_ms - 1.0
