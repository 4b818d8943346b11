"""What the profiler remembers of online requests."""

import msgspec
import pytest

from loadgen.report.slo import parse_slo
from loadgen.workload.traces import TraceRequest
from services.profiler.slo.online_watch import OnlineWatch
from services.profiler.slo.workload import LONGEST_OPEN_S, Workload, WorkloadRecorder, drift
from shared.latency.histogram import LatencyHistogram
from shared.protocol.profiling.online import FinishedOnline, OnlineLatencies, OnlineServed
from shared.watch.windows import Rolling


def served(
    *finished: tuple[float, int, int], oldest_open_s: float | None = None, gateway: str = "g", ttft_ms: float = 0.0
) -> OnlineServed:
    ttft = LatencyHistogram()
    if ttft_ms:
        ttft.add(ttft_ms)
    told = [FinishedOnline(*each) for each in finished]
    return OnlineServed("executor-0", gateway, 0.0, oldest_open_s, len(told), told, OnlineLatencies(ttft))


def test_requests_come_back_by_arrival_from_the_first_on() -> None:
    recorder = WorkloadRecorder(start_s=1000.0)
    recorder.add(served((1012.0, 30, 3), (1010.0, 100, 10)))
    recorder.add(served((999.0, 7, 7), (1011.0, 20, 0)))  # the first arrived before the recording
    workload = recorder.workload(1030.0)
    assert workload is not None
    assert workload.requests == [TraceRequest(0.0, 100, 10), TraceRequest(1.0, 20, 1), TraceRequest(2.0, 30, 3)]
    assert workload.duration_s == 20.0


def test_it_ends_before_the_oldest_open_request_of_any_gateway() -> None:
    recorder = WorkloadRecorder(0.0)
    recorder.add(served((10.0, 1, 1), (20.0, 1, 1), (30.0, 1, 1), oldest_open_s=25.0))
    recorder.add(served(oldest_open_s=28.0, gateway="other"))
    workload = recorder.workload(40.0)
    assert workload is not None and len(workload.requests) == 2 and workload.duration_s == 15.0
    recorder.add(served())  # of the first gateway: nothing is open any more
    workload = recorder.workload(40.0)
    assert workload is not None and workload.duration_s == 18.0
    workload = recorder.workload(28.0 + LONGEST_OPEN_S + 4.0)
    assert workload is not None and len(workload.requests) == 3


def test_old_requests_and_those_beyond_the_capacity_are_forgotten() -> None:
    recorder = WorkloadRecorder(0.0, span_s=100.0, capacity=10)
    for second in range(50):
        recorder.add(served((float(second), 1, 1)))
    workload = recorder.workload(50.0)
    assert workload is not None and (len(workload.requests), workload.duration_s) == (10, 10.0)
    workload = recorder.workload(145.0)
    assert workload is not None and len(workload.requests) == 5
    assert recorder.workload(149.0) is None


def test_a_full_recording_has_the_newest_before_the_oldest_that_is_open() -> None:
    """However many have come, and ended, since that one came."""
    recorder = WorkloadRecorder(0.0, capacity=10)
    for second in range(60):
        recorder.add(served((float(second), 1, 1), oldest_open_s=20.0))
        workload = recorder.workload(float(second + 1))
        assert (workload is not None and workload.is_full) is (second >= 9)
    assert workload is not None and (len(workload.requests), workload.duration_s) == (10, 10.0)


def test_of_executors_that_serve_nothing_any_more_nothing_stays() -> None:
    """However many have come and gone."""
    watch = OnlineWatch(0.0)
    for number in range(20):
        for second in (300 * number, 300 * number + 1):
            told = served((float(second), number, 1))
            watch.on_served(second, msgspec.structs.replace(told, executor_id=f"executor-{number}"))
    assert len(watch._recorders) == 3
    workload = watch.workload(300 * 19 + 2.0)
    assert workload is not None and [each.num_prompt_tokens for each in workload.requests] in ([18, 18], [19, 19])


def steady(num_requests: int, gap_s: float, prompt: int = 100) -> Workload:
    return Workload([TraceRequest(n * gap_s, prompt, 10) for n in range(num_requests)], num_requests * gap_s)


def test_facts_tell_means_and_burstiness() -> None:
    bursty = Workload([TraceRequest(second + n * 1e-3, 50 + n, 10) for second in (0, 9) for n in range(5)], 18.0)
    facts = bursty.facts()
    assert (facts.requests, facts.duration_s, facts.input_tokens_mean, facts.output_tokens_mean) == (10, 18.0, 52, 10)
    assert facts.burstiness > 2
    assert steady(10, 1.0).facts().burstiness == 0.0


def test_drift_names_what_differs() -> None:
    then = steady(400, 1.0).facts()
    assert drift(steady(350, 1.1).facts(), then, 0.3) == ""
    assert drift(steady(400, 0.5).facts(), then, 0.3) == "requests/s 2 instead of 1"
    assert drift(steady(400, 1.0, prompt=50).facts(), then, 0.3) == "prompt tokens 50 instead of 100"
    known, other = (msgspec.structs.replace(then, burstiness=value) for value in (1.0, 2.0))
    assert "burstiness 2 instead of 1" in drift(other, known, 0.3)
    assert drift(other, then, 0.3) == ""  # steady arrivals have none to compare with


def test_the_last_minute_of_latencies() -> None:
    rolling, slo = Rolling(60.0, OnlineLatencies), parse_slo("ttft_p99<=1s")
    for second in range(100):
        rolling.add(float(second), served(ttft_ms=float(1 + second)).latencies)
    latencies = rolling.total(99.0)
    assert latencies.ttft_ms.num_samples == 60
    assert latencies.value_ms(slo) == pytest.approx(99.4, rel=0.02)
    assert latencies.value_ms(parse_slo("ttft_mean<=1s")) == pytest.approx(70.5)
    assert rolling.total(500.0).value_ms(slo) is None
    assert OnlineLatencies().value_ms(parse_slo("tbt_p50<=1ms")) is None
