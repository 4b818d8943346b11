"""Figure 14: offline throughput when plans are made with ever worse latency models."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK, from_zero, legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, ONLINE_ONLY, SARATHI, Bench, Found
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.samples import run_samples, sweep_samples, windowed
from benchmarks.hygen.settings import LLAMA, P99_TBT, Setting
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from services.profiler.simulation.setup import Machine
from shared.latency.linear import LinearLatencyModel
from shared.protocol.latency_models import FittedModel

TOLERANCE = 0.05
ELSEWHERE = (
    Setting(Machine(model="llama2-7b", device="a100-80g"), qps=1.0),
    Setting(Machine(model="mistral-7b", device="a100-40g"), qps=1.0),
    Setting(Machine(model="llama2-7b", device="a40"), qps=0.5),
    Setting(Machine(model="llama2-7b", device="h100"), qps=2.0),
)
DISTORTIONS = (0.25, 0.5, 1.0)  # sigma of a lognormal factor on each coefficient
OWN, OTHER, DISTORTED = "fitted here", "fitted elsewhere", "fitted here, then distorted"
HEADER = ("planned with", "MAPE", "budget ms", "p99 TBT", "offline tokens/s", "of that without error")


@dataclass(frozen=True, slots=True)
class Planner:
    """``kind``: a line of the picture."""

    name: str
    kind: str
    mape: float
    found: Found


def make(lab: Lab) -> Result:
    bench = lab.bench(LLAMA)
    slo = P99_TBT.slo(TOLERANCE)
    exact = bench.largest(HYGEN, [slo])
    planners = list(_planners(lab, bench, exact))
    figure, axes = panels(1, 1, 3.2)
    _draw(axes[0][0], planners, exact)
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    rows = [_row(bench, planner, exact) for planner in [Planner("what steps take", "", 0.0, exact), *planners]]
    caption = f"Under {slo}, each model with the budget that the profiler finds for it. {rates([bench])}; {lab.window}."
    return Result("fig14", [Table(caption, HEADER, rows)], figure)


def _draw(panel: Axes, planners: Sequence[Planner], exact: Found) -> None:
    panel.axhline(exact.measured.offline_tokens_per_s, linestyle="--", color=GREY, label="no error")
    for kind, (style, colour) in {OWN: ("o", BLUE), OTHER: ("s", ORANGE), DISTORTED: ("^", PINK)}.items():
        of_kind = [planner for planner in planners if planner.kind == kind]
        y = [planner.found.measured.offline_tokens_per_s for planner in of_kind]
        panel.plot([100 * planner.mape for planner in of_kind], y, style, color=colour, label=kind)
    from_zero(panel)
    panel.set_xlim(left=0)
    panel.set_xlabel("mean absolute percentage error of the model that plans (%)")
    panel.set_ylabel("offline tokens/s")


def _planners(lab: Lab, bench: Bench, exact: Found) -> Iterator[Planner]:
    live = run_samples(bench, HYGEN, exact.value)
    for name, kind, model in _models(lab, bench, windowed(live)):
        if model is None:
            continue
        bench.planners[name] = model
        found = bench.largest(replace(HYGEN, planner=name), [P99_TBT.slo(TOLERANCE)])
        yield Planner(name, kind, mean_relative_error(model, live), found)


def _models(lab: Lab, bench: Bench, live: Sequence[Observation]) -> Iterator[tuple[str, str, FittedModel | None]]:
    """Name, kind and model."""
    linear = fit_linear(live)
    yield "boosted, this workload", OWN, fit_boosted(live)
    yield "linear, this workload", OWN, linear
    yield "linear, the sweep", OWN, fit_linear(sweep_samples(bench))
    yield "linear, online only", OWN, fit_linear(windowed(run_samples(bench, ONLINE_ONLY)))
    for setting in ELSEWHERE:
        there = windowed(run_samples(lab.bench(setting), SARATHI))
        yield f"linear, {setting.name}", OTHER, fit_linear(there)
    for sigma in DISTORTIONS:
        yield f"linear, distorted by {sigma:g}", DISTORTED, distorted(linear, sigma) if linear else None


def distorted(model: LinearLatencyModel, sigma: float, seed: int = 0) -> LinearLatencyModel:
    """Each coefficient times a lognormal factor; the same seed draws the same."""
    rng = random.Random(f"{seed}:{sigma}")
    return LinearLatencyModel(*(each * rng.lognormvariate(0.0, sigma) for each in model.coefficients()))


def _row(bench: Bench, planner: Planner, exact: Found) -> list[str]:
    measured = planner.found.measured
    reached = measured.latency_ms(P99_TBT) / bench.online_only.latency_ms(P99_TBT)
    most = exact.measured.offline_tokens_per_s
    return [
        planner.name,
        f"{100 * planner.mape:.1f}%",
        planner.found.text,
        f"{reached:.3f}x",
        f"{measured.offline_tokens_per_s:,.0f}",
        f"{100 * measured.offline_tokens_per_s / most:.0f}%" if most else "-",
    ]
