"""What ``slackwater predict`` prints."""

import time
from itertools import groupby

import msgspec
from rich.console import Console
from rich.table import Table

from shared.protocol.latency_models import BoostedCurves, LatencyModelRecord, LinearCoefficients, ModelRecord
from shared.protocol.prediction import PredictBatch, Prediction

PROFILE_WIDTH = 20  # so that a narrow terminal folds the key, not the figures
BROS_REGRESSORS = ("if prefills", "S_p", "pairs", "if decodes", "N_d", "S_d")
REGRESSORS = ("", "S_p", "S_d", "S_p²", "S_d²", "N_p", "N_d", "pairs")


class ListedModel(msgspec.Struct, frozen=True):
    """One published model. ``revision``: of its record on the bus."""

    revision: int
    record: LatencyModelRecord


def print_prediction(asked: PredictBatch, prediction: Prediction) -> None:
    """The whole and whose it is, and a table of its requests, equal ones together."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    noise = "" if prediction.noise_floor is None else f", noise floor {prediction.noise_floor:.1%}"
    console.print(f"{prediction.latency_ms:.2f} ms", style="bold")
    console.print(f"{prediction.profile_key}: {prediction.kind} model, off by {prediction.mape:.1%} on average{noise}")
    table = Table("request", "adds ms", box=None, header_style="bold")
    names = [f"prefill {chunk.num_tokens}@{chunk.num_computed_tokens}" for chunk in asked.prefills]
    names += [f"decode {context_len}" for context_len in asked.decode_context_lens]
    costs_ms = (*prediction.prefill_costs_ms, *prediction.decode_costs_ms)
    for name, alike in groupby(zip(names, costs_ms, strict=True), key=lambda named: named[0]):
        of_each = [cost_ms for _, cost_ms in alike]
        table.add_row(f"{len(of_each)} x {name}" if len(of_each) > 1 else name, f"{sum(of_each):.3f}")
    console.print(table)


def print_models(models: list[ListedModel]) -> None:
    """One row for each model, and below what they consist of."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not models:
        console.print("no latency model has been fitted yet")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("profile", overflow="fold", min_width=PROFILE_WIDTH)
    for name in ("model", "samples", "linear", "boosted", "bros", "noise", "drifts", "rev"):
        table.add_column(name, no_wrap=True)
    for listed in models:
        table.add_row(*_row(listed.revision, listed.record))
    console.print(table)
    console.print(" linear, boosted, bros: how far off on batches not fitted to; noise: what equal batches differ by")
    for listed in models:
        console.print(f"\n{listed.record.profile_key}, ms\n  {_formula(listed.record.model)}")
        if listed.record.drifts:
            console.print(f"  {_last_drift(listed.record)}")


def _row(revision: int, record: LatencyModelRecord) -> list[str]:
    errors = {candidate.kind: candidate.mape for candidate in record.candidates}
    return [
        record.profile_key,
        record.kind,
        str(record.num_samples),
        *(_percent(errors.get(kind)) for kind in ("linear", "boosted", "bros")),
        _percent(record.noise_floor),
        str(record.drifts),
        str(revision),
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _last_drift(record: LatencyModelRecord) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.drifted_at_s or 0.0))
    return f"last drift at {when}: steps took {record.drift_ratio or 1.0:.2f} times as long as predicted"


def _formula(model: ModelRecord) -> str:
    """The terms that are not 0; of a curve, what a unit costs and from where on."""
    if not isinstance(model, BoostedCurves):
        regressors = REGRESSORS if isinstance(model, LinearCoefficients) else BROS_REGRESSORS
        named = zip(model.coefficients, regressors, strict=True)
        return " + ".join(f"{weight:.4g} {regressor}".rstrip() for weight, regressor in named if weight) or "0"
    terms = [f"{model.base:.4g}"]
    for curve in model.curves:
        bends = (f"{slope:.4g} from {knot}" for knot, slope in zip(curve.knots, curve.slopes, strict=True))
        terms.append(f"{curve.of}: {', '.join(bends)}")
    return "\n  + ".join(terms)
