"""Makers of batch shapes."""

from __future__ import annotations

from collections.abc import Iterable

from shared.latency.features import BatchFeatures
from shared.protocol.messages import BatchShape


def make_shape(chunks: Iterable[tuple[int, int] | int] = (), contexts: Iterable[int] = ()) -> BatchShape:
    """``chunks``: tokens, or tokens and computed tokens, of each prefill; ``contexts``: KV that each decode reads."""
    features = BatchFeatures()
    for chunk in chunks:
        features.add_prefill(*(chunk if isinstance(chunk, tuple) else (chunk, 0)))
    for context_len in contexts:
        features.add_decode(context_len)
    return BatchShape.of(features)
