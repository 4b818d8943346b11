"""What a device reaches: shares of its data sheet, times that scale, and what is no rate."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.device_rates import (
    DECODE_ATTENTION_FLOPS_REACHED,
    GEMM_FLOPS_REACHED,
    LINK_REACHED,
    MEMORY_REACHED,
    PREFILL_ATTENTION_FLOPS_REACHED,
    DeviceRates,
)
from shared.latency.devices import DEVICES

positive = st.floats(1e-3, 1e12)
rates = st.builds(DeviceRates, *[positive] * 5, st.floats(0, 100), st.floats(0, 100), st.none() | positive)


@pytest.mark.parametrize("name", DEVICES)
def test_kernels_reach_their_share_of_the_data_sheet(name: str) -> None:
    device = DEVICES[name]
    found, flops, memory = DeviceRates.of_data_sheet(device, 2.5), device.half_flops_per_s, device.memory_bytes_per_s
    per_second = {each: value * 1e3 for each, value in asdict(found).items() if "overhead" not in each}
    assert per_second == pytest.approx(
        {
            "gemm_flops_per_ms": GEMM_FLOPS_REACHED * flops,
            "prefill_attention_flops_per_ms": PREFILL_ATTENTION_FLOPS_REACHED * flops,
            "decode_attention_flops_per_ms": DECODE_ATTENTION_FLOPS_REACHED * flops,
            "gemm_bytes_per_ms": MEMORY_REACHED * memory,
            "attention_bytes_per_ms": MEMORY_REACHED * memory,
            "link_bytes_per_ms": LINK_REACHED * device.link_bytes_per_s,
        }
    )
    assert (found.prefill_overhead_ms, found.decode_overhead_ms) == (2.5, 2.5)


@given(rates, st.floats(0.1, 10))
def test_all_takes_so_many_times_as_long(some: DeviceRates, factor: float) -> None:
    """A unit of work takes the inverse of its rate; what a device has not, it has not then."""

    def times(of: DeviceRates) -> dict[str, float | None]:
        return {
            name: value if value is None or name.endswith("overhead_ms") else 1 / value
            for name, value in asdict(of).items()
        }

    expected = {name: None if value is None else factor * value for name, value in times(some).items()}
    found = times(some.scaled(factor))
    assert found.keys() == expected.keys()
    assert all(found[name] == (value if value is None else pytest.approx(value)) for name, value in expected.items())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gemm_bytes_per_ms": 0.0}, "rate gemm_bytes_per_ms is 0"),
        ({"link_bytes_per_ms": 0.0}, "rate link_bytes_per_ms is 0"),
        ({"decode_overhead_ms": -1.0}, "coefficient decode_overhead_ms is -1"),
        ({"attention_bytes_per_ms": float("inf")}, "coefficient attention_bytes_per_ms is inf"),
    ],
)
def test_what_is_no_rate_is_refused(changes: dict[str, float], said: str) -> None:
    sound = DeviceRates.of_data_sheet(DEVICES["a40"], 0.0)
    assert replace(sound, gemm_flops_per_ms=1.0, link_bytes_per_ms=None).decode_overhead_ms == 0.0
    with pytest.raises(ValueError, match=said):
        replace(sound, **changes)
