"""Fitted latency models on the bus, and what the predictor says by them."""

import msgspec

from shared.bounds import Amount, Count, Finite, ProfileKey
from shared.latency.architectures import Architecture
from shared.latency.boosted import BoostedLatencyModel, Curve, Sum
from shared.latency.bros import BrosCoefficients, BrosLatencyModel
from shared.latency.device_rates import DeviceRates
from shared.latency.echo import EchoCoefficients, EchoLatencyModel
from shared.latency.linear import Coefficients, LinearLatencyModel
from shared.latency.roofline import RooflineLatencyModel
from shared.protocol.profiling.measurements import PrefillChunk

FittedModel = LinearLatencyModel | BoostedLatencyModel | BrosLatencyModel | EchoLatencyModel | RooflineLatencyModel


class LinearCoefficients(msgspec.Struct, frozen=True, tag_field="kind", tag="linear"):
    """Of 1, S_p, S_d, S_p^2, S_d^2, N_p, N_d and the prefill pairs in this order, in milliseconds, not negative."""

    coefficients: Coefficients


class CurveRecord(msgspec.Struct, frozen=True):
    """Piecewise linear: ``slopes[i]``, milliseconds per unit, from ``knots[i]`` to the next knot or for ever."""

    of: Sum
    knots: tuple[Count, ...]  # ascending, from 0
    slopes: tuple[Amount, ...]  # not negative


class BoostedCurves(msgspec.Struct, frozen=True, tag_field="kind", tag="boosted"):
    """``base`` milliseconds, and a curve for each sum that matters."""

    base: Amount
    curves: list[CurveRecord]


class BrosLines(msgspec.Struct, frozen=True, tag_field="kind", tag="bros"):
    """beta, alpha0 and alpha1 of the prefills, then of the decodes, all in milliseconds and not negative."""

    coefficients: BrosCoefficients


class EchoTimes(msgspec.Struct, frozen=True, tag_field="kind", tag="echo"):
    """alpha, beta and c of the prefills, gamma and delta of the decodes, in milliseconds and not negative; then lambda,
    from 0.5 to 1."""

    coefficients: EchoCoefficients


class RooflineRates(msgspec.Struct, frozen=True, tag_field="kind", tag="roofline"):
    """What ``tensor_parallel`` devices reach that share the model."""

    architecture: Architecture
    rates: DeviceRates
    tensor_parallel: int = 1


ModelRecord = LinearCoefficients | BoostedCurves | BrosLines | EchoTimes | RooflineRates


class Candidate(msgspec.Struct, frozen=True):
    """One kind of model, fitted to the same samples."""

    kind: str  # "linear", "boosted", "roofline", "bros", "echo"
    mape: Amount  # on held-out samples, 0 to 1
    prediction_us: Amount  # one marginal cost of a decode, on the predictor's machine


class LatencyModelRecord(msgspec.Struct, frozen=True):
    """The model of one profile key, versioned by the KV revision, and how good it is."""

    profile_key: ProfileKey
    model: ModelRecord
    num_samples: Count
    mape: Amount  # mean absolute percentage error on held-out samples, 0 to 1
    fitted_at_s: Finite
    noise_floor: Amount | None = None  # what equal batches deviate by, 0 to 1; None where none was repeated
    candidates: list[Candidate] = []
    linear_fit: Coefficients | None = None  # what the next linear fit starts from
    drifts: Count = 0  # how often measured times left the published model
    drift_ratio: Amount | None = None  # measured over predicted, when they last did
    drifted_at_s: float | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.model)

    def latency_model(self) -> FittedModel:
        """Raises ValueError for coefficients that are no model."""
        match self.model:
            case LinearCoefficients(coefficients=coefficients):
                return LinearLatencyModel(*coefficients)
            case BrosLines(coefficients=lines):
                return BrosLatencyModel(*lines)
            case EchoTimes(coefficients=times):
                return EchoLatencyModel(*times)
            case RooflineRates(architecture=architecture, rates=rates, tensor_parallel=tensor_parallel):
                return RooflineLatencyModel(architecture, rates, tensor_parallel)
            case BoostedCurves(base=base, curves=curves):
                return BoostedLatencyModel(base, {each.of: Curve(each.knots, each.slopes) for each in curves})


def kind_of(record: ModelRecord) -> str:
    """The record's tag."""
    return str(record.__struct_config__.tag)


def model_record(model: FittedModel) -> ModelRecord:
    """What ``LatencyModelRecord.latency_model`` makes the model of again."""
    if isinstance(model, LinearLatencyModel):
        return LinearCoefficients(model.coefficients())
    if isinstance(model, BrosLatencyModel):
        return BrosLines(model.coefficients())
    if isinstance(model, EchoLatencyModel):
        return EchoTimes(model.coefficients())
    if isinstance(model, RooflineLatencyModel):
        return RooflineRates(model.architecture, model.rates, model.tensor_parallel)
    curves = [CurveRecord(of, curve.knots, curve.slopes) for of, curve in model.curves.items()]
    return BoostedCurves(model.base, curves)


class PredictBatch(msgspec.Struct, frozen=True):
    """One step's batch. ``whose``: a profile key, a model's name or an executor's id; empty where there is only one."""

    prefills: list[PrefillChunk]
    decode_context_lens: list[Count]  # KV tokens that each decode reads, its own included
    whose: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """Reply to PredictBatch. Milliseconds; the costs are marginal, in the order of the request, and add up to the
    whole; of an echo model, whose prediction can fall where a request is added, perhaps to more. ``error`` says why
    there is none, and what is known instead."""

    latency_ms: float = 0.0
    prefill_costs_ms: list[float] = []
    decode_costs_ms: list[float] = []
    profile_key: str = ""
    kind: str = ""  # of the model, as of a Candidate
    mape: float = 0.0  # of the model, on held-out samples, 0 to 1
    noise_floor: float | None = None  # what equal batches deviate by
    revision: int = 0  # of the model on the bus
    fitted_at_s: float = 0.0
    error: str = ""
