"""Figure 5: the error of the latency predictor on batches that it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.charts import BLUE, ORANGE, legend_above, panels
from benchmarks.hygen.bench import HYGEN, Bench
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.samples import NOISE, run_samples, sweep_samples, truth, windowed
from benchmarks.hygen.settings import LLAMA, MEAN_TBT, QWEN
from benchmarks.page import Result, Table
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from shared.latency.model import LatencyModel
from shared.protocol.latency_models import FittedModel

TOLERANCE = 0.2  # of mean TBT, in the run that is predicted
SHOWN = 700  # points of each model
PAPER = {LLAMA: "1.78%", QWEN: "1.07%"}
HEADER = ("setting", "fitted to", "samples", "linear", "boosted", "noise alone", "paper")


def make(lab: Lab) -> Result:
    benches = [lab.bench(LLAMA), lab.bench(QWEN)]
    figure, axes = panels(1, len(benches), 3.2)
    rows = []
    for bench, panel in zip(benches, axes[0], strict=True):
        live = run_samples(bench, HYGEN, bench.largest(HYGEN, [MEAN_TBT.slo(TOLERANCE)]).value)
        seen, unseen = live[: len(live) // 2], live[len(live) // 2 :]
        rows.append(_row(bench, "the sweep", sweep_samples(bench), unseen))
        rows.append(_row(bench, "the run's first half", windowed(seen), unseen))
        for label, colour, model in zip(("linear", "boosted"), (ORANGE, BLUE), fits(windowed(seen)), strict=True):
            if model is None:
                continue
            shown = unseen[:: max(1, len(unseen) // SHOWN)]
            errors = [100 * _error(model, each) for each in shown]
            panel.plot(
                [each.latency_ms for each in shown], errors, ".", color=colour, markersize=4, label=label, alpha=0.6
            )
        panel.set_title(bench.setting.name)
        panel.set_xlabel("step time (ms)")
    axes[0][0].set_ylabel("error of the prediction (%)")
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = (
        f"Mean absolute percentage error on the second half of a run of hygen under {MEAN_TBT.slo(TOLERANCE)}, steps "
        f"timed with {100 * NOISE:g}% noise. {rates(benches)}; {lab.window}."
    )
    return Result("fig5", [Table(caption, HEADER, rows)], figure)


def fits(observations: Sequence[Observation]) -> tuple[FittedModel | None, FittedModel | None]:
    """Linear and boosted; None where the samples do not tell enough."""
    return fit_linear(observations), fit_boosted(observations)


def _row(bench: Bench, fitted_to: str, observations: Sequence[Observation], unseen: Sequence[Observation]) -> list[str]:
    errors = [None if model is None else mean_relative_error(model, unseen) for model in fits(observations)]
    cells = ["" if error is None else f"{100 * error:.2f}%" for error in errors]
    noise = fmean(abs(_error(truth(bench), each)) for each in unseen)
    return [
        bench.setting.name,
        fitted_to,
        f"{len(observations):,}",
        *cells,
        f"{100 * noise:.2f}%",
        PAPER[bench.setting],
    ]


def _error(model: LatencyModel, observation: Observation) -> float:
    return model.predict_ms(observation.shape) / observation.latency_ms - 1.0
