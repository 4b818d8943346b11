"""What the benchmark of a changed load tells of its runs."""

from benchmarks.vllm.changed_load import Beside
from loadgen.report.report import OfflineReport, OnlineReport, Summary


def online(latency_ms: float, under_way_share: float) -> OnlineReport:
    same = Summary(*[latency_ms] * 4)
    return OnlineReport(10, 9, 1, 0, same, same, same, same, None, 1.0, 1.0, 1.0, under_way_share)


def offline(tokens_per_s: float) -> OfflineReport:
    return OfflineReport("batch", 100, 10, 0, 60.0, False, 0.1, tokens_per_s / 2, tokens_per_s)


def test_a_row_is_over_what_was_got_without_a_batch_and_tells_no_harvest_of_no_idle_time() -> None:
    beside = Beside("a tenth", 0.05, online(12.0, 0.5), offline(30.0), online(10.0, 0.25))
    assert beside.row(offline(80.0)) == {
        "online work": "a tenth",
        "requests/s": "0.05",
        "requests": "9, 1 failed",
        "TTFT p99 ms": "12",
        "TBT mean ms": "12.0",
        "TTFT p99, of online alone": "1.20",
        "TBT mean, of online alone": "1.20",
        "offline tokens/s": "30.0",
        "harvest": "0.50",
    }
    always_busy = Beside("ten times that, at once", 0.5, online(12.0, 1.0), offline(30.0), online(10.0, 1.0))
    assert always_busy.row(offline(80.0))["harvest"] == ""
