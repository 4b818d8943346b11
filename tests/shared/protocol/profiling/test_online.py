"""What gateways tell of latencies, added up."""

from typing import NamedTuple

import pytest

from shared.protocol.profiling.online import OnlineLatencies


class Figure(NamedTuple):
    metric: str
    statistic: str


def test_latencies_are_added_up_metric_by_metric() -> None:
    """Those that nobody told of stay empty."""
    total = OnlineLatencies()
    assert total.is_empty
    for first, second in ((20.0, 300.0), (40.0, 500.0)):
        told = OnlineLatencies()
        told.tbt_ms.add(first)
        told.e2e_ms.add(second)
        assert not told.is_empty
        total.merge(told)
    counts = {name: getattr(total, name).num_samples for name in OnlineLatencies.__struct_fields__}
    assert counts == {"ttft_ms": 0, "tbt_ms": 2, "tpot_ms": 0, "normalized_latency_ms": 0, "e2e_ms": 2}
    assert total.value_ms(Figure("tbt_ms", "mean")) == 30.0 and total.value_ms(Figure("e2e_ms", "mean")) == 400.0


@pytest.mark.parametrize(("statistic", "expected"), [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("mean", 50.0)])
def test_a_figure_is_a_quantile_or_the_mean(statistic: str, expected: float) -> None:
    latencies, figure = OnlineLatencies(), Figure("ttft_ms", statistic)
    assert latencies.value_ms(figure) is None
    for number in range(101):
        latencies.ttft_ms.add(float(number))
    assert latencies.histogram(figure) is latencies.ttft_ms
    assert latencies.value_ms(figure) == pytest.approx(expected, rel=0.011)
