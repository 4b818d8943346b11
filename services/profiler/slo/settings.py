"""The settings of keeping SLOs."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from loadgen.report.slo import Slo
from shared.settings.setting import LIST


class SloSettings(msgspec.Struct, frozen=True):
    """What to promise, and when to search for a budget that keeps it."""

    slo: Annotated[
        str,
        Meta(
            description="SLOs to keep, as ttft_p99<=800ms or tbt_mean<=1.05x of online work alone; several with commas "
            "between them; empty keeps the target TBT",
            extra=LIST,
        ),
    ] = ""
    slo_min_requests: Annotated[int, Meta(ge=2, description="online requests before a budget is searched for")] = 100
    slo_min_s: Annotated[float, Meta(gt=0, description="seconds that they must have taken to arrive")] = 60.0
    slo_check_s: Annotated[float, Meta(gt=0, description="seconds between looks for drift")] = 60.0
    slo_drift: Annotated[float, Meta(gt=0, description="share by which the workload must differ for a new search")] = (
        0.3
    )
    target_tbt_ms: Annotated[float, Meta(gt=0, description="time between tokens that online requests are promised")] = (
        100.0
    )

    def start_budget_ms(self, slos: Sequence[Slo]) -> float:
        """Before anything is profiled: the time between tokens that the SLOs name themselves, since a step takes no
        longer; where they name none in milliseconds, the target TBT."""
        named = [slo.limit for slo in slos if slo.metric in ("tbt_ms", "tpot_ms") and not slo.relative]
        return min(named, default=self.target_tbt_ms)
