"""What the offline order says, with and without a latency model."""

import pytest

from services.offline_queue.order_details import order_details
from shared.latency.linear import LinearLatencyModel
from shared.watch.tuning import NO_LATENCY_KNOWN

FIGURES = {"output_length_error": 0.25, "waiting_tokens": 3000.0, "waiting_reads": 400_000.0}
MODEL = LinearLatencyModel(5.0, 0.5, 0.002, 0.0, 0.0, 0.0, 1.0)


def test_the_density_of_what_waits_is_in_ms_over_ms() -> None:
    told = order_details(FIGURES, MODEL)
    assert told.pop("compute_density") == pytest.approx(3000 * 0.5 / (400_000 * 0.002))
    assert told == FIGURES


@pytest.mark.parametrize(
    ("figures", "model"),
    [
        (FIGURES, None),
        (FIGURES, NO_LATENCY_KNOWN),
        ({"output_length_error": 0.25}, MODEL),
        ({**FIGURES, "waiting_tokens": 0.0, "waiting_reads": 0.0}, MODEL),
        ({}, MODEL),
    ],
    ids=["no model", "a model that predicts nothing", "not counted", "nothing waits", "an order that tells nothing"],
)
def test_otherwise_there_is_none(figures: dict[str, float], model: LinearLatencyModel | None) -> None:
    assert order_details(figures, model) == figures
