"""Keys of SLO profiles in their bucket."""

import re

from shared.protocol.profiling.slo_profile import Knob, slo_profile_key

SLOS = ["ttft_p99<=800ms", "tbt_mean<=1.05x"]


def test_the_same_slos_have_the_same_key_in_any_order() -> None:
    key = slo_profile_key("llama2-7b-a100", SLOS, Knob.BUDGET_MS)
    assert key == slo_profile_key("llama2-7b-a100", reversed(SLOS), Knob.BUDGET_MS)
    assert key == slo_profile_key("llama2-7b-a100", ["TBT_mean <= 1.05x", "ttft_p99 <= 800 ms"], Knob.BUDGET_MS)
    assert re.fullmatch(r"llama2-7b-a100\.[0-9a-f]{12}", key)


def test_other_slos_or_another_knob_have_another() -> None:
    keys = {
        slo_profile_key("a", SLOS, Knob.BUDGET_MS),
        slo_profile_key("a", SLOS, Knob.OFFLINE_QPS),
        slo_profile_key("a", SLOS[:1], Knob.BUDGET_MS),
        slo_profile_key("b", SLOS, Knob.BUDGET_MS),
    }
    assert len(keys) == 4
