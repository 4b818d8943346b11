"""Spans of a request, from its client's through the gateway to its executor, as a collector gets them by OTLP."""

import gzip
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from services.executor.request_spans import STEPS_A_SPAN
from services.local.stack.machine import free_port
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORDED, IGNORED = f"00-{TRACE}-{CLIENT}-01", f"00-{TRACE}-{CLIENT}-00"
NUM_TOKENS = 40
PRESET = ("--preset", "sarathi++")  # which needs no latency model


@dataclass(frozen=True)
class Told:
    """One span as the collector got it. ``parent``: empty for none."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[str]


class Collector:
    """Takes spans over HTTP. Use as a context manager."""

    def __init__(self) -> None:
        self.spans: list[Told] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> "Collector":
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
                    }
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    events = [event.name for event in span.events]
                    self.spans.append(Told(about["service.name"], span.name, *ids, *times, attributes, events))

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as started:
        yield started


def start(rig: GatewayRig, endpoint: str, *gateway: str) -> None:
    rig.start_gateway("--trace-endpoint", endpoint, *gateway)
    rig.start_executor("executor-0", "--trace-endpoint", endpoint, *PRESET)
    rig.wait_ready()


def ask(rig: GatewayRig, traceparent: str | None = None, max_tokens: int = NUM_TOKENS) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True}
    headers = {} if traceparent is None else {"traceparent": traceparent}
    return rig.http.post("/v1/completions", json=body, headers=headers)


def test_a_clients_trace_goes_through_gateway_and_executor(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, collector.url, "--log-level", "debug")
        answer = ask(rig, RECORDED)
        assert answer.status_code == 200
        wait_until(lambda: len(collector.named("decode")) == len(collector.named("generate")) == 1, rig.logs)
        wait_until(lambda: bool(collector.named("POST /v1/completions")), rig.logs)
        events = rig.log_events("gateway")
    assert {span.trace_id for span in collector.spans} == {TRACE}
    (served,), (generate,), (route,) = map(collector.named, ("POST /v1/completions", "generate", "route"))
    assert (served.parent, generate.parent, route.parent) == (CLIENT, served.span_id, generate.span_id)
    assert served.attributes["http.response.status_code"] == 200
    assert served.attributes["slackwater.http_request_id"] == answer.headers["x-request-id"]
    assert generate.attributes["gen_ai.usage.output_tokens"] == NUM_TOKENS
    assert generate.attributes["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert generate.events == ["first token"] and route.attributes == {"slackwater.executor_id": "executor-0"}
    phases = [*map(collector.named, ("waiting", "prefill", "decode"))]
    (waiting,), (prefill,), (decode,) = phases
    assert {each.service for (each,) in phases} == {"slackwater-executor"}
    assert {each.parent for (each,) in phases} == {generate.span_id}
    assert waiting.end_ns == prefill.start_ns <= prefill.end_ns == decode.start_ns < decode.end_ns
    assert served.start_ns <= generate.start_ns <= waiting.start_ns and generate.end_ns <= served.end_ns
    steps = collector.named("decode step")
    assert len(steps) in (NUM_TOKENS // STEPS_A_SPAN, NUM_TOKENS // STEPS_A_SPAN + 1)
    assert all(prefill.end_ns <= step.start_ns < step.end_ns <= decode.end_ns for step in steps)
    (line,) = [event for event in events if event["event"] == "answered" and event["path"] == "/v1/completions"]
    assert line["trace_id"] == TRACE


def test_only_what_is_to_be_recorded_is_told(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, collector.url, "--trace-share", "0")
        for traceparent in (IGNORED, None, "nonsense", "00-" + "f" * 5000):
            assert ask(rig, traceparent, 2).status_code == 200
        assert rig.http.get("/health", headers={"traceparent": RECORDED}).status_code == 200
        assert ask(rig, RECORDED, 2).status_code == 200
        assert rig.stop("gateway") == rig.stop("executor-0") == 0  # all is told by then
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert len(collector.named("POST /v1/completions")) == len(collector.named("generate")) == 1
    assert not [span for span in collector.spans if "health" in span.name]


def test_nothing_is_told_of_a_request_that_its_client_does_not_record(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, collector.url)
        assert ask(rig, IGNORED, 2).status_code == 200
        assert rig.stop("gateway") == rig.stop("executor-0") == 0
    assert not collector.spans


def test_a_request_that_goes_on_elsewhere_is_one_trace(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, collector.url)
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with rig.http.stream("POST", "/v1/completions", json=body, headers={"traceparent": RECORDED}) as answer:
            chunks = []
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    if len(chunks) == 5:
                        rig.signal("executor-0", signal.SIGKILL)
                        rig.start_executor("executor-1", "--trace-endpoint", collector.url)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        wait_until(lambda: bool(collector.named("generate") and collector.named("decode")), rig.logs)
    (generate,) = collector.named("generate")
    assert generate.events == ["first token", "lost"] and len(collector.named("route")) == 2
    (decode,) = collector.named("decode")  # the one that died has told nothing
    assert (decode.trace_id, decode.attributes["slackwater.executor_id"]) == (TRACE, "executor-1")


def test_a_request_that_is_handed_over_is_decoded_by_two(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_gateway("--trace-endpoint", collector.url)
        for executor_id, role in (("prompts", "relaxed"), ("decodes", "strict")):
            rig.start_executor(executor_id, "--role", role, "--trace-endpoint", collector.url, *PRESET)
        rig.wait_ready()
        wait_until(lambda: ask(rig).status_code == 200 and bool(collector.named("handing over")), rig.logs)
        collector.spans.clear()
        assert ask(rig, RECORDED).status_code == 200
        wait_until(lambda: len([span for span in collector.named("decode") if span.trace_id == TRACE]) == 2, rig.logs)
        wait_until(lambda: any(span.trace_id == TRACE for span in collector.named("generate")), rig.logs)
    own = [span for span in collector.spans if span.trace_id == TRACE]
    first, last = sorted((span for span in own if span.name == "decode"), key=lambda span: span.start_ns)
    (handing,) = (span for span in own if span.name == "handing over")
    assert first.end_ns == handing.start_ns < handing.end_ns and first.start_ns < last.start_ns
    of_both = [span.attributes["slackwater.executor_id"] for span in (first, handing, last)]
    assert of_both == ["prompts", "prompts", "decodes"]
    assert handing.attributes["slackwater.taker_id"] == "decodes"
    (generate,) = (span for span in own if span.name == "generate")
    assert {first.parent, handing.parent, last.parent} == {generate.span_id} and "handed over" in generate.events


def test_of_a_batchs_lines_some_are_in_its_trace(tmp_path: Path, collector: Collector) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, collector.url)
        rig.start_offline_queue(*PRESET)
        rig.http.headers["traceparent"] = RECORDED

        def body(number: int) -> dict[str, Any]:
            max_tokens = NUM_TOKENS if number % 100 == 0 else 2
            return {"model": MODEL, "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True}

        lines = [
            json.dumps({"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": body(n)})
            for n in range(120)
        ]
        files = {"file": ("in.jsonl", "\n".join(lines).encode())}
        file_id = rig.http.post("/v1/files", files=files, data={"purpose": "batch"}).json()["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch_id = rig.http.post("/v1/batches", json=asked).json()["id"]
        wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
        wait_until(lambda: len(collector.named("batch line")) == 2, rig.logs)
    (created,) = collector.named("POST /v1/batches")
    told = {span.attributes["slackwater.request_id"]: span for span in collector.named("batch line")}
    assert {request_id.removeprefix(f"{batch_id}.") for request_id in told} == {"1", "101"}
    assert {(span.parent, span.trace_id) for span in told.values()} == {(created.span_id, TRACE)}
    assert len(collector.named("prefill")) == 2
    decodes = {span.start_ns: span for span in collector.named("decode")}
    for prefill in collector.named("prefill"):
        decode = decodes.pop(prefill.end_ns)
        assert decode.start_ns < decode.end_ns
        assert [each.attributes["slackwater.output_tokens"] for each in (prefill, decode)] == [1, NUM_TOKENS]
    assert len(collector.named("decode step")) in range(2 * (NUM_TOKENS // STEPS_A_SPAN), 7)


def test_a_collector_that_is_away_is_nobodys_trouble(tmp_path: Path) -> None:
    with GatewayRig(tmp_path) as rig:
        start(rig, f"http://127.0.0.1:{free_port()}/v1/traces")
        assert all(ask(rig, None, 2).status_code == 200 for _ in range(20))
        began_s = time.monotonic()
        assert rig.stop("gateway") == rig.stop("executor-0") == 0
        assert time.monotonic() - began_s < 60


def test_without_an_endpoint_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_gateway()
        rig.start_executor("executor-0")
        rig.wait_ready()
        assert ask(rig, RECORDED, 2).status_code == 200
        maps = [Path(f"/proc/{rig._processes[name].pid}/maps").read_text() for name in ("gateway", "executor-0")]
    assert not any("grpc" in each or "_upb" in each for each in maps)
