"""Fit a sum of curves to timed batches: LightGBM finds where each curve bends, least squares how steep it is between.

Trees of LightGBM under monotone constraints, and under interaction constraints that allow one sum per tree, add up to
one rising staircase for each sum. A staircase predicts a batch well but not what one more decode costs: nothing on a
step, much at its edge. So the edges where the loss gained most, and some quantiles, become the knots of a piecewise
linear curve, whose slopes are fitted anew, none negative.
"""

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from services.predictor.regression import Array, Samples, Wishes, rows_of, solve_trimmed
from services.predictor.window import Observation, covers_both_kinds
from shared.latency.boosted import MAX_TABLE, BoostedLatencyModel, Curve, Sum, sums_of

logger = logging.getLogger(__name__)

MIN_SHAPES = 32  # distinct ones; fewer cannot tell curves
NUM_EDGES = 8  # of a staircase that become knots
NUM_QUANTILES = 8  # of the distinct values: an edge shows where a curve rises, not where it begins to
MIN_BETWEEN_KNOTS = 8  # samples
BEND_WEIGHT = 0.1  # a bend that would change typical times by their half counts as a sample that is off by 16%
ROUNDS = 200
COUNTS = (Sum.TOKENS, Sum.REQUESTS, Sum.DECODE_REQUESTS)  # looked up in tables
PARAMETERS = {
    "objective": "regression",
    "monotone_constraints": [1] * len(Sum),
    "interaction_constraints": [[index] for index in range(len(Sum))],
    "learning_rate": 0.1,
    "num_leaves": 8,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 1,
    "verbosity": -1,
}


def fit_boosted(observations: Sequence[Observation]) -> BoostedLatencyModel | None:
    """None where the observations tell only one of prefills and decodes, or too few distinct shapes, and on a machine
    that lacks what LightGBM needs.

    Slopes on both sides of a knot are pulled a little together, so that a curve goes on sensibly where samples are few
    and beyond them. The same observations give the same model.
    """
    lightgbm = _lightgbm()
    if lightgbm is None or not covers_both_kinds(observations, MIN_SHAPES):
        return None
    samples = Samples.of(observations)
    values = rows_of(observations, sums_of)
    knots = _knots(lightgbm, values, samples)
    solution = solve_trimmed(_ramps(values, knots), samples, _smooth(values, knots, samples))
    return None if solution is None else _model(knots, solution)


@cache
def _lightgbm() -> Any | None:
    """The library; None, with a word in the log, where it cannot be loaded: its wheels need the system's OpenMP."""
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError) as error:
        logger.warning("no boosted models: LightGBM cannot be loaded", extra={"error": str(error)})
        return None


def _ramps(values: Array, knots: list[list[int]]) -> Array:
    """[n, 1 + number of knots]: a one, and of each sum the part of it that lies between two knots."""
    columns = [np.ones(len(values))]
    for column, starts in zip(values.T, knots, strict=True):
        ends = [*starts[1:], np.inf]
        columns += [np.clip(column - start, 0, end - start) for start, end in zip(starts, ends, strict=True)]
    return np.stack(columns, axis=1)


def _smooth(values: Array, knots: list[list[int]], samples: Samples) -> Wishes:
    """Equal slopes on both sides of each knot."""
    effects = np.sqrt(np.mean((values / samples.latencies[:, None]) ** 2, axis=0))  # of a slope of 1, on relative times
    rows, start = [], 1
    for effect, starts in zip(effects, knots, strict=True):
        for index in range(start, start + len(starts) - 1):
            row = np.zeros(1 + sum(map(len, knots)))
            row[index : index + 2] = -effect, effect
            rows.append(row * np.sqrt(BEND_WEIGHT))
        start += len(starts)
    return Wishes(np.array(rows).reshape(-1, 1 + sum(map(len, knots))), np.zeros(len(rows)))


def _knots(lightgbm: Any, values: Array, samples: Samples) -> list[list[int]]:
    """Of each sum, in the order of ``Sum``: 0, edges of its staircase, and quantiles."""
    weights = samples.weights / samples.latencies**2  # squared errors become relative ones
    data = lightgbm.Dataset(values, samples.latencies, weight=weights)
    parameters = PARAMETERS | {"min_data_in_leaf": max(3, min(20, len(values) // 32))}
    booster = lightgbm.train(parameters, data, ROUNDS)
    gains: list[dict[float, float]] = [{} for _ in Sum]
    for tree in booster.dump_model()["tree_info"]:
        _collect(tree["tree_structure"], gains)
    return [
        _apart(_edges(gains[index]) | _quantiles(column), column, MAX_TABLE if of in COUNTS else None)
        for index, (of, column) in enumerate(zip(Sum, values.T, strict=True))
    ]


def _collect(node: dict[str, Any], gains: list[dict[float, float]]) -> None:
    """Add the gain of each split to that of its sum and threshold."""
    if "split_feature" not in node:
        return
    of = gains[node["split_feature"]]
    of[node["threshold"]] = of.get(node["threshold"], 0.0) + node["split_gain"]
    _collect(node["left_child"], gains)
    _collect(node["right_child"], gains)


def _edges(gains: dict[float, float]) -> set[int]:
    """At equal parts of the gain, whose root evens out the few high edges and the many low ones."""
    thresholds = sorted(gains)
    if not thresholds:
        return set()
    share = np.cumsum(np.sqrt([gains[threshold] for threshold in thresholds]))
    parts = (np.arange(NUM_EDGES) + 0.5) / NUM_EDGES * share[-1]
    return {round(thresholds[int(index)]) for index in np.searchsorted(share, parts)}


def _quantiles(column: Array) -> set[int]:
    """Of the distinct values but 0."""
    distinct = np.unique(column[column > 0])
    if not len(distinct):
        return set()
    return {round(float(value)) for value in np.quantile(distinct, (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES)}


def _apart(candidates: set[int], column: Array, before: int | None) -> list[int]:
    """0 and those candidates that have MIN_BETWEEN_KNOTS samples between them, and ``before`` a limit."""
    knots, ordered = [0], np.sort(column)
    for knot in sorted(candidates):
        since, below = np.searchsorted(ordered, (knots[-1], knot), side="right")
        is_apart = below - since >= MIN_BETWEEN_KNOTS and len(ordered) - below >= MIN_BETWEEN_KNOTS
        if is_apart and knot > knots[-1] and (before is None or knot < before):
            knots.append(knot)
    return knots


def _model(knots: list[list[int]], solution: Array) -> BoostedLatencyModel:
    """Without the curves that are flat, and without the knots where nothing bends."""
    curves, start = {}, 1
    for of, starts in zip(Sum, knots, strict=True):
        slopes = [float(slope) for slope in solution[start : start + len(starts)]]
        start += len(starts)
        bends = [index for index in range(len(starts)) if index == 0 or slopes[index] != slopes[index - 1]]
        if any(slopes):
            curves[of] = Curve(tuple(starts[index] for index in bends), tuple(slopes[index] for index in bends))
    return BoostedLatencyModel(float(solution[0]), curves)
