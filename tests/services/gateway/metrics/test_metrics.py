"""``/metrics`` of a gateway with executors of the sim engine, against the tables that docs/metrics.md is made of."""

import ast
import asyncio
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.gateway.live import vllm_requests
from services.gateway.live.generation import OnlineGeneration, Sender
from services.gateway.live.metrics import generation_series
from services.gateway.live.vllm_requests import LABELS, MAX_LEFT, VllmRequests, token_buckets
from services.gateway.metrics.series import Readings, Series
from services.gateway.metrics.tables import BLOCKS, DRAINING, EXECUTOR_COUNTERS, EXECUTOR_LOAD, NUM_BLOCKS, SLOWDOWN
from services.gateway.metrics_reference import all_series, vllm_series
from shared.process.telemetry import Telemetry
from shared.protocol.sampling import FinishReason
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until
from tests.services.gateway.live.test_tracker import REQUEST

SLOS = ("ttft_p99<=30s", "tbt_mean<=1s")
OWN_LABELS = {"le", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}
NOT_OURS = re.compile("target_info|.*_created")
NOT_HERE = {  # what no run of a few seconds has
    *("slackwater_flex_resumed_requests_total", "slackwater_resumed_requests_total"),
    *("slackwater_executor_online_slowdown", "slackwater_budget_tolerance"),
}


def declared() -> dict[str, Series]:
    ours = [series for each in all_series().values() for series in each]
    return {series.exposed: series for series in (*ours, *vllm_series())}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("metrics")) as rig:
        rig.start_gateway()
        for start in (rig.start_offline_queue, rig.start_predictor):
            start()
        rig.start_profiler("--slo", ",".join(SLOS))
        rig.start_executor("executor-0", "--budget-ms", "40")
        rig.wait_ready()
        for _ in range(3):
            assert rig.complete(max_tokens=6, ignore_eos=True).status_code == 200
        flex = {"service_tier": "flex", "max_tokens": 3, "n": 2, "ignore_eos": True}
        wait_until(lambda: rig.complete(**flex).status_code == 200, rig.logs)
        assert rig.complete(model="nobody").status_code == 404
        assert rig.http.get("/v1/models", headers={"Host": "elsewhere.example"}).status_code == 403
        body = {"model": MODEL, "max_tokens": 2, "ignore_eos": True}
        rig.submit_batch([{**body, "prompt": f"line {each}"} for each in range(5)])
        ended = "slackwater_batches_ended_total"
        wait_until(lambda: rig.metric(ended, status="completed") == 1, rig.logs)
        yield rig


def families(rig: GatewayRig) -> dict[str, Metric]:
    """By the names that the tables have."""
    found = text_string_to_metric_families(rig.http.get("/metrics").text)
    return {f"{each.name}_total" if each.type == "counter" else each.name: each for each in found}


def test_latencies_are_there_in_both_names(rig: GatewayRig) -> None:
    own = {kind: rig.metric(f"slackwater_{kind}e2e_seconds_count") for kind in ("", "flex_")}
    assert own == {"": 3, "flex_": 2}
    engine = {"model_name": MODEL, "engine": "executor-0"}
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_generation_tokens"):
        assert rig.metric(f"vllm:{name}_count", **engine) == 5, name
    assert rig.metric("vllm:request_generation_tokens_sum", **engine) == 3 * 6 + 2 * 3
    assert rig.metric("vllm:inter_token_latency_seconds_count", **engine) >= 3
    sums = [rig.metric(f"slackwater_{kind}e2e_seconds_sum") for kind in ("", "flex_")]
    assert rig.metric("vllm:e2e_request_latency_seconds_sum", **engine) == pytest.approx(sum(sums))
    assert rig.metric("vllm:request_success_total", finished_reason="length", **engine) == 5
    assert rig.metric("vllm:request_success_total", finished_reason="abort", **engine) == 0


def test_executors_are_vllm_engines_with_the_work_of_batches(rig: GatewayRig) -> None:
    wait_until(lambda: rig.metric("vllm:generation_tokens_total", engine="executor-0") == 34, rig.logs)  # 24 + 5 * 2
    queries, hits, cached = (
        rig.metric(f"vllm:{name}_total")
        for name in ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens_cached")
    )
    assert queries == rig.metric("vllm:prompt_tokens_total") > hits == cached >= 0
    assert rig.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == queries - hits
    blocks = rig.metric("slackwater_executor_num_blocks", executor_id="executor-0")
    free = rig.metric("slackwater_executor_num_free_blocks", executor_id="executor-0")
    assert rig.metric("vllm:kv_cache_usage_perc", engine="executor-0") == pytest.approx(1 - free / blocks)
    assert rig.metric("vllm:cache_config_info", num_gpu_blocks=str(int(blocks))) == 1
    assert rig.metric("slackwater_executor_blocks") == blocks


def test_what_is_shown_is_as_it_is_declared_and_the_other_way_round(rig: GatewayRig) -> None:
    series = declared()

    def is_all_there() -> bool:
        return set(series) - NOT_HERE <= {name for name, each in families(rig).items() if each.samples}

    with rig.completing(max_tokens=64):  # some are told of requests that run, or of the last minute's
        wait_until(is_all_there, lambda: f"missing: {sorted(set(series) - NOT_HERE - set(families(rig)))}")
    for name, family in families(rig).items():
        if NOT_OURS.fullmatch(name):
            continue
        assert family.type == series[name].type, name
        assert family.documentation == series[name].meaning
        for sample in family.samples:
            assert set(sample.labels) - OWN_LABELS == set(series[name].labels), name


def test_slos_budgets_batches_and_services_are_told(rig: GatewayRig) -> None:
    with rig.completing(max_tokens=8, ignore_eos=True):
        wait_until(lambda: rig.metric("slackwater_slo_kept") == 2, rig.logs)
    assert rig.metric("slackwater_slo_bound_seconds", slo=SLOS[0]) == 30
    assert rig.metric("slackwater_batch_lines_total", result="completed") == 5
    assert rig.metric("slackwater_batch_lines_left") == 0
    assert rig.metric("slackwater_batches") == 0
    services = ("gateway", "offline-queue", "predictor", "profiler", "executor-0")
    assert [rig.metric("slackwater_service_up", service=name) for name in services] == [1] * 5
    assert rig.metric("slackwater_service_restarts_total", service="predictor") == 0
    rig.stop("predictor")
    rig.start_predictor()
    wait_until(lambda: rig.metric("slackwater_service_restarts_total", service="predictor") == 1, rig.logs)


def test_names_and_buckets_are_those_of_vllm() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed here")
    folder = Path(spec.origin).parent / "v1/metrics"
    loggers = (folder / "loggers.py").read_text()
    known = set(re.findall(r'name="(vllm:\w+)"', loggers)) | {"vllm:cache_config_info"}
    assert {series.name for series in vllm_series()} <= known
    labels = re.search(r"labelnames = (\[.*\])", loggers)
    assert labels is not None and ast.literal_eval(labels[1]) == [*LABELS]
    values = {
        node.target.id: ast.literal_eval(node.value)
        for node in ast.parse((folder / "buckets.py").read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.endswith("_BUCKETS")
    }
    assert values["TIME_TO_FIRST_TOKEN_BUCKETS"] == vllm_requests.TTFT_S
    assert values["INTER_TOKEN_LATENCY_BUCKETS"] == vllm_requests.BETWEEN_TOKENS_S
    assert values["REQUEST_LATENCY_BUCKETS"] == vllm_requests.REQUEST_S


def test_a_wait_is_known_as_far_as_an_answer() -> None:
    """Of a flex request it may be most of that, before its first token or, where it gave way, between two."""
    series = generation_series("flex")
    assert series["ttft"].buckets[-1] == series["tbt"].buckets[-1] == series["e2e"].buckets[-1]


def test_token_buckets_end_at_the_context() -> None:
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(99) == (1, 2, 5, 10, 20, 50)


async def test_executors_that_come_and_go_leave_no_more_than_some_series() -> None:
    telemetry = Telemetry("test")
    requests = VllmRequests(telemetry.registry, 100, {REQUEST.model: REQUEST.model})
    for number in range(3 * MAX_LEFT):
        generation = OnlineGeneration(f"r{number}", REQUEST, Sender(""), 0.0, 0.0)
        generation.place = (f"executor-{number}", "epoch")
        requests.tokens(generation, 1.0, 1)
        requests.finished(generation, FinishReason.ABORT)
    requests.forget(["executor-0"])
    text = (await telemetry.render()).decode()
    counted = {match[1] for match in re.finditer(r'vllm:request_success_total\{engine="([^"]+)"', text)}
    timed = {match[1] for match in re.finditer(r'vllm:time_to_first_token_seconds_count\{engine="([^"]+)"', text)}
    last = {f"executor-{number}" for number in range(2 * MAX_LEFT, 3 * MAX_LEFT)}
    assert counted == timed == last | {"executor-0"}
    telemetry.close()


async def test_an_executor_is_told_of_however_many_there_were_before_it() -> None:
    telemetry, live = Telemetry("test"), {"executor_id": ""}
    BLOCKS.observe(telemetry.registry, lambda: [(7, live | {"owner": "online"})])
    EXECUTOR_COUNTERS["steps"].observe(telemetry.registry, lambda: [(9, live)])
    for number in range(3000):
        live["executor_id"] = f"executor-{number}"
        text = (await telemetry.render()).decode()
    assert [line for line in text.splitlines() if not line.startswith("#") and "executor" in line] == [
        'slackwater_executor_blocks{executor_id="executor-2999",owner="online"} 7.0',
        'slackwater_executor_steps_total{executor_id="executor-2999"} 9.0',
    ]
    telemetry.close()


async def test_a_series_that_cannot_be_read_leaves_the_others_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, tells = Telemetry("test"), {"executor_id": "executor-0"}

    def fail() -> Iterator[tuple[float, dict[str, str]]]:
        yield 1, tells
        raise ZeroDivisionError

    read: list[Callable[[], Readings]] = [lambda: [(9, tells)], fail, lambda: [(9, {})], lambda: [(9, tells)]]
    for series, each in zip([DRAINING, EXECUTOR_LOAD, NUM_BLOCKS, SLOWDOWN], read, strict=True):
        series.observe(telemetry.registry, each)
    lines = (await telemetry.render()).decode().splitlines()
    assert [line for line in lines if not line.startswith("#") and "executor" in line] == [
        'slackwater_executor_draining{executor_id="executor-0"} 9.0',
        'slackwater_executor_online_slowdown{executor_id="executor-0"} 9.0',
    ]
    failed = [vars(record)["series"] for record in caplog.records if record.message == "a series could not be read"]
    assert failed == [EXECUTOR_LOAD.exposed, NUM_BLOCKS.exposed]
    telemetry.close()


async def test_others_have_their_turn_between_any_two_series() -> None:
    telemetry, turns = Telemetry("test"), []
    for number, series in enumerate(EXECUTOR_COUNTERS.values()):
        series.observe(telemetry.registry, lambda number=number: [(len(turns), {"executor_id": str(number)})])
    rendering = asyncio.ensure_future(telemetry.render())
    while not rendering.done():
        turns.append(None)
        await asyncio.sleep(0)
    text = rendering.result().decode()
    values = [float(line.split()[-1]) for line in text.splitlines() if "executor_id" in line]
    assert len(values) == len(set(values)) == len(EXECUTOR_COUNTERS)
    telemetry.close()
