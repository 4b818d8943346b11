"""Deadlines of tokens out of SLOs as people say them."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report.slo import Slo


def deadlines_of(slos: Sequence[Slo]) -> tuple[float | None, float | None]:
    """Milliseconds to a first token and to a later one: the tightest bounds on TTFT, and on TPOT and TBT. None where
    there is none. Raises ValueError for an SLO that is no deadline of a token."""
    ttft_ms: list[float] = []
    tpot_ms: list[float] = []
    for slo in slos:
        if slo.relative or slo.metric == "normalized_latency_ms":
            raise ValueError(f"{slo.expr}: deadlines need bounds in ms on ttft, tpot or tbt")
        (ttft_ms if slo.metric == "ttft_ms" else tpot_ms).append(slo.limit)
    return min(ttft_ms, default=None), min(tpot_ms, default=None)
