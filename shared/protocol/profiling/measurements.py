"""Timed steps and batches: what latency models are fitted to."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import Amount, Count, ProfileKey
from shared.latency.features import BatchFeatures

MAX_REPEATS = 100
BUSY, REPLACED = "busy", "another incarnation has this id"  # errors of a MeasuredShape


class LatencySample(msgspec.Struct, frozen=True):
    """One timed step."""

    executor_id: str
    profile_key: ProfileKey
    step: int
    shape: BatchFeatures
    latency_ms: float


class PrefillChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a prompt that one step computes, over the KV of what came before it."""

    num_tokens: Count
    num_computed_tokens: Count = 0


class MeasureShape(msgspec.Struct, frozen=True):
    """Ask an executor to time one batch on scratch KV blocks, while it is idle; ``epoch``: one incarnation of it, any
    where empty."""

    prefills: list[PrefillChunk]
    decode_context_lens: list[Count]  # KV that is there before the decode's own token
    repeats: Annotated[int, Meta(ge=0, le=MAX_REPEATS)] = 3
    epoch: str = ""


class MeasuredShape(msgspec.Struct, frozen=True):
    """Reply to MeasureShape: one latency per repeat, or why it could not be done."""

    shape: BatchFeatures
    latencies_ms: list[Amount]
    error: str = ""
