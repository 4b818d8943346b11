"""The kinds of latency model, how each is fitted, and how far each is off."""

from collections.abc import Callable, Sequence

from services.predictor.boosted_fit import fit_boosted
from services.predictor.echo_fit import fit_echo
from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_bros, fit_linear
from services.predictor.window import Observation
from shared.pictures import BLUE, GREEN, ORANGE, PINK
from shared.protocol.latency_models import FittedModel

Fit = Callable[[Sequence[Observation]], FittedModel | None]  # None where the samples do not tell enough
FITS: dict[str, tuple[Fit, str]] = {
    "linear": (fit_linear, ORANGE),
    "boosted": (fit_boosted, BLUE),
    "bros": (fit_bros, PINK),
    "echo": (fit_echo, GREEN),
}  # with the colour of its curve


def error_cells(
    fitted_to: Sequence[Observation], unseen: Sequence[Observation], kinds: Sequence[str] = tuple(FITS)
) -> dict[str, str]:
    """By kind, the mean absolute percentage error; empty where there is too little to fit the kind to."""
    models = {kind: FITS[kind][0](fitted_to) for kind in kinds}
    return {
        kind: "" if model is None else f"{100 * mean_relative_error(model, unseen):.2f}%"
        for kind, model in models.items()
    }
