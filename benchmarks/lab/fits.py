"""The kinds of latency model, how each is fitted, and how far each is off."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from services.predictor.boosted_fit import fit_boosted
from services.predictor.echo_fit import fit_echo
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_bros, fit_linear
from services.predictor.roofline_fit import fit_roofline
from services.predictor.window import Observation
from shared.latency.architectures import Architecture
from shared.pictures import BLUE, GREEN, ORANGE, PINK, SKY
from shared.protocol.profiling.latency_models import FittedModel

Fit = Callable[[Sequence[Observation]], FittedModel | None]  # None where the samples do not tell enough
Fits = Mapping[str, tuple[Fit, str]]  # with the colour of its curve
FITS: Fits = {
    "linear": (fit_linear, ORANGE),
    "boosted": (fit_boosted, BLUE),
    "bros": (fit_bros, PINK),
    "echo": (fit_echo, GREEN),
}


def fits_of(architecture: Architecture, tensor_parallel: int = 1) -> Fits:
    """With the roofline of a model that is known."""
    fit = partial(fit_roofline, architecture=architecture, tensor_parallel=tensor_parallel)
    by_kind = {**FITS, "roofline": (fit, SKY)}
    return {kind: by_kind[kind] for kind in ("linear", "boosted", "roofline", "bros", "echo")}


def error_cells(
    fitted_to: Sequence[Observation],
    unseen: Sequence[Observation],
    kinds: Sequence[str] = tuple(FITS),
    fits: Fits = FITS,
) -> dict[str, str]:
    """By kind, the mean absolute percentage error; empty where there is too little to fit the kind to."""
    models = {kind: fits[kind][0](fitted_to) for kind in kinds}
    return {
        kind: "" if model is None else f"{100 * mean_relative_error(model, unseen):.2f}%"
        for kind, model in models.items()
    }
