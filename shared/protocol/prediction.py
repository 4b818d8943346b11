"""Asking the predictor how long a batch takes."""

import msgspec

from shared.protocol.measurements import PrefillChunk


class PredictBatch(msgspec.Struct, frozen=True):
    """One step's batch. ``whose``: a profile key, a model's name or an executor's id; empty where there is only one."""

    prefills: list[PrefillChunk]
    decode_context_lens: list[int]  # KV tokens that each decode reads, its own included
    whose: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """Reply to PredictBatch. Milliseconds; the costs are marginal, in the order of the request, and add up to the
    whole. ``error`` says why there is none, and what is known instead."""

    latency_ms: float = 0.0
    prefill_costs_ms: list[float] = []
    decode_costs_ms: list[float] = []
    profile_key: str = ""
    kind: str = ""  # of the model: "linear", "boosted"
    mape: float = 0.0  # of the model, on held-out samples, 0 to 1
    noise_floor: float | None = None  # what equal batches deviate by
    revision: int = 0  # of the model on the bus
    fitted_at_s: float = 0.0
    error: str = ""
