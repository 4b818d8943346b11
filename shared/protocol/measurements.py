"""Timed steps and batches: what latency models are fitted to."""

import msgspec

from shared.latency.features import BatchFeatures


class LatencySample(msgspec.Struct, frozen=True):
    """One timed step."""

    executor_id: str
    profile_key: str
    step: int
    shape: BatchFeatures
    latency_ms: float


class PrefillChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a prompt that one step computes, over the KV of what came before it."""

    num_tokens: int
    num_computed_tokens: int = 0


class MeasureShape(msgspec.Struct, frozen=True):
    """Ask an executor to time one batch on scratch KV blocks, while it is idle."""

    prefills: list[PrefillChunk]
    decode_context_lens: list[int]  # KV that is there before the decode's own token
    repeats: int = 3


class MeasuredShape(msgspec.Struct, frozen=True):
    """Reply to MeasureShape: one latency per repeat, or why it could not be done."""

    shape: BatchFeatures
    latencies_ms: list[float]
    error: str = ""
