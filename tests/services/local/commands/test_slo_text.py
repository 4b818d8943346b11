"""SLOs in the words of ``slackwater status``."""

import msgspec
import pytest

from services.local.commands.status.table import slo_text
from shared.protocol.profiling.budgets import SloState, SloStatus
from shared.protocol.profiling.slo_profile import SloVerdict

KEPT = SloVerdict("ttft_p99<=800ms", 800.0, 123.4, True)
BROKEN = SloVerdict("tbt_mean<=1.05x", 25.2, 31.5, False)
STATUS = SloStatus("kind", SloState.PROFILED, 40.0, "slo", [KEPT, BROKEN], 38.5, 1000.0, "first")


def test_each_slo_is_shown_against_its_bound() -> None:
    assert slo_text(STATUS, 1030.0).splitlines() == [
        "SLOs of kind: profiled 30 s ago: 38.5 ms (first)",
        "  ttft_p99<=800ms          123.4 of 800 ms  kept",
        "  tbt_mean<=1.05x          31.5 of 25.2 ms  BROKEN",
    ]


@pytest.mark.parametrize(("seconds", "shown"), [(90, "90 s"), (600, "10 min"), (3600 * 5, "5 h"), (-1, "0 s")])
def test_the_age_is_rounded(seconds: float, shown: str) -> None:
    assert f"profiled {shown} ago" in slo_text(STATUS, 1000.0 + seconds)


def test_what_is_not_known_or_wrong_is_said() -> None:
    unknown = [SloVerdict("tbt_mean<=1.05x", None, 20.0, False), SloVerdict("tpot_p50<=9ms", 9.0, None, False)]
    recording = SloStatus("kind", SloState.RECORDING, 100.0, "slo-start", unknown, note="3 of 100 requests")
    assert slo_text(recording, 0.0).splitlines() == [
        "SLOs of kind: recording the workload",
        "  tbt_mean<=1.05x          20 of ? ms",
        "  tpot_p50<=9ms            no online requests in the last minute (bound 9 ms)",
        "  3 of 100 requests",
    ]
    unreachable = msgspec.structs.replace(STATUS, state=SloState.UNREACHABLE, profiled_ms=None)
    assert "unreachable 5 s ago: no offline work (first)" in slo_text(unreachable, 1005.0)
