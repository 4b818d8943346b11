"""Latency models as they are published: what is read is what was fitted."""

import pytest
from msgspec.structs import replace

from shared.latency.boosted import BoostedLatencyModel, Curve, Sum
from shared.latency.bros import BrosLatencyModel
from shared.latency.echo import EchoLatencyModel
from shared.latency.linear import LinearLatencyModel
from shared.protocol.codec import decode_record, encode_record
from shared.protocol.profiling.latency_models import (
    BrosLines,
    FittedModel,
    LatencyModelRecord,
    LinearCoefficients,
    kind_of,
    model_record,
)
from tests.shared.latency.shapes import TRUTH, make_shape, roofline

CURVES = {Sum.TOKENS: Curve((0, 64), (0.25, 0.5)), Sum.DECODE_REQUESTS: Curve((0,), (0.125,))}
MODELS: dict[str, FittedModel] = {
    "linear": LinearLatencyModel(*TRUTH),
    "boosted": BoostedLatencyModel(5.0, CURVES),
    "bros": BrosLatencyModel(6.0, 0.01, 0.02, 5.0, 0.03, 0.04),
    "echo": EchoLatencyModel(1e-4, 0.02, 4.0, 0.1, 0.001, 0.75),
    "roofline": roofline("llama3.1-8b", "h100", 2),
}
SHAPE = make_shape([100, (30, 200)], [500, 20, 7])


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_read_predicts_what_the_fitted_one_did(kind: str) -> None:
    record = LatencyModelRecord("m-cpu", model_record(MODELS[kind]), 100, 0.05, 1.0)
    read = decode_record(encode_record(record), LatencyModelRecord)
    assert read == record and read.kind == kind_of(record.model) == kind
    assert type(read.latency_model()) is type(MODELS[kind])
    assert read.latency_model().predict_ms(SHAPE) == MODELS[kind].predict_ms(SHAPE) > 0
    assert model_record(read.latency_model()) == record.model


@pytest.mark.parametrize("model", [LinearCoefficients((-1.0,) * 8), BrosLines((5.0, -0.1, 0.0, 5.0, 0.0, 0.0))])
def test_coefficients_that_are_no_model_are_refused(model: LinearCoefficients | BrosLines) -> None:
    record = LatencyModelRecord("m-cpu", model_record(MODELS["linear"]), 100, 0.05, 1.0)
    with pytest.raises(ValueError):
        replace(record, model=model).latency_model()
