"""SLOs as the profiler's setting gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen.report.slo import Slo, parse_slo

SEPARATORS = re.compile(r"[,;]")


def parse_slos(text: str) -> list[Slo]:
    """Separated by commas or semicolons; none for an empty text. Raises SloError with what to write instead."""
    return [parse_slo(expr.strip()) for expr in SEPARATORS.split(text) if expr.strip()]


def start_budget_ms(slos: Sequence[Slo], default_ms: float) -> float:
    """Before anything is profiled: the time between tokens that the SLOs name themselves, since a step takes no longer;
    where they name none in milliseconds, the default."""
    named = [slo.limit for slo in slos if slo.metric in ("tbt_ms", "tpot_ms") and not slo.relative]
    return min(named, default=default_ms)
