"""Too much to do: offline work is turned away first, then online requests, and all is taken again when it is less."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import openai
import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

LONG = {"model": MODEL, "prompt": [7] * 10, "max_tokens": 4000, "ignore_eos": True, "stream": True}


@contextmanager
def rig_with(folder: Any, *options: str) -> Iterator[GatewayRig]:
    """Its executor runs one request at a time, slowly."""
    with GatewayRig(folder) as made:
        made.start_executor("executor-0", "--max-num-seqs", "1", "--sim-time-scale", "2")
        made.start_gateway(*options)
        made.wait_ready()
        yield made


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("gateway")


@contextmanager
def waiting(rig: GatewayRig, count: int) -> Iterator[None]:
    """One request runs and so many wait, for as long as this lasts."""
    with ExitStack() as open_streams:
        for number in range(count + 1):
            stream = open_streams.enter_context(rig.http.stream("POST", "/v1/completions", json=LONG))
            assert stream.status_code == 200
            if number == 0:
                wait_until(lambda: rig.metric("slackwater_waiting_requests") == 0, "the first does not run")
        yield


def upload(rig: GatewayRig, num_lines: int) -> httpx.Response:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 5}
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body})
        for n in range(num_lines)
    ]
    files = {"file": ("in.jsonl", "\n".join(lines).encode())}
    return rig.http.post("/v1/files", data={"purpose": "batch"}, files=files)


def create_batch(rig: GatewayRig, file_id: str) -> httpx.Response:
    fields = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return rig.http.post("/v1/batches", json=fields)


def refused(rig: GatewayRig, reason: str) -> float:
    return rig.metric("slackwater_refused_requests_total", reason=reason)


def test_offline_work_is_turned_away_before_online_requests_are(folder: Any) -> None:
    with rig_with(folder, "--max-waiting-requests", "4") as rig:
        file_id = upload(rig, 1).json()["id"]
        with waiting(rig, 2):
            for offline in (create_batch(rig, file_id), upload(rig, 1)):
                assert offline.status_code == 429 and int(offline.headers["retry-after"]) >= 1
                assert offline.json()["error"]["code"] == "server_overloaded"
            assert refused(rig, "online_first") == 2
            assert rig.http.get("/v1/batches").status_code == 200
            with rig.http.stream("POST", "/v1/completions", json=LONG) as online:
                assert online.status_code == 200
        wait_until(lambda: rig.metric("slackwater_waiting_requests") == 0, "somebody still waits")
        assert create_batch(rig, file_id).status_code == 200


def test_online_requests_beyond_the_queue_are_told_to_come_back(folder: Any) -> None:
    with rig_with(folder, "--max-waiting-requests", "4") as rig:
        with waiting(rig, 4):
            answer = rig.complete()
            assert answer.status_code == 503 and 2 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"] | {"message": ""} == {
                "message": "",
                "type": "server_overloaded",
                "param": None,
                "code": "server_overloaded",
            }
            with pytest.raises(openai.InternalServerError):
                rig.openai.completions.create(model=MODEL, prompt="x", extra_headers={"Authorization": ""})
            assert refused(rig, "waiting_requests") == 2
            assert rig.http.get("/health").status_code == 200
            assert rig.metric("slackwater_live_requests") == 5
        wait_until(lambda: rig.metric("slackwater_live_requests") == 0, "aborted requests are still held")
        assert rig.complete().status_code == 200


def test_more_choices_than_ever_may_wait_are_no_matter_of_time(folder: Any) -> None:
    with rig_with(folder, "--max-waiting-requests", "2") as rig:
        for key, most in (("", 2), ("Bearer somebody", 4)):
            for number, status in ((most, 200), (most + 1, 400)):
                fields = {"prompt": [[7, 8]] * number, "model": MODEL, "max_tokens": 1}
                headers = {"Authorization": key} if key else {}
                answer = rig.http.post("/v1/completions", json=fields, headers=headers)
                assert answer.status_code == status, answer.text
            assert f"{most} may wait at most" in answer.json()["error"]["message"]


def test_the_prompts_of_the_queue_are_bounded_by_tokens_and_all_requests_by_number(folder: Any) -> None:
    with rig_with(folder, "--max-waiting-tokens", "100", "--max-live-requests", "4") as rig:
        assert rig.complete(prompt=[7] * 150).status_code == 200  # alone it waits for nobody
        with waiting(rig, 2):
            assert rig.complete(prompt=[7] * 90).status_code == 503
            assert refused(rig, "waiting_tokens") == 1
            assert rig.complete(n=2).status_code == 503, "each choice counts"
            with rig.http.stream("POST", "/v1/completions", json=LONG) as fourth:
                assert fourth.status_code == 200
                assert rig.complete().status_code == 503
                assert refused(rig, "live_requests") == 2


def test_who_floods_the_queue_keeps_no_other_client_out_of_it(folder: Any) -> None:
    with rig_with(folder, "--max-waiting-requests", "4") as rig, ExitStack() as open_streams:

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            stream = rig.http.stream("POST", "/v1/completions", json=LONG, headers=headers)
            return open_streams.enter_context(stream).status_code

        assert status("flood") == 200
        wait_until(lambda: rig.metric("slackwater_waiting_requests") == 0, "the first does not run")
        assert [status("flood") for _ in range(6)] == [200] * 4 + [503] * 2
        assert [status(key) for key in ("a", "a", "b", "c", "d", "e")] == [200, 503, 200, 200, 200, 503]


@pytest.mark.slow
def test_a_queue_that_does_not_move_is_not_added_to(folder: Any) -> None:
    with rig_with(folder, "--max-wait-s", "11") as rig, waiting(rig, 1):
        answers: list[httpx.Response] = []

        def is_refused() -> bool:
            fields = LONG | {"max_tokens": 1}
            with rig.http.stream("POST", "/v1/completions", json=fields) as answer:
                answers.append(answer)
            return answer.status_code == 503

        wait_until(is_refused, "taken for ever")
        assert {answer.status_code for answer in answers[:-1]} == {200}
        assert refused(rig, "wait") == 1


def test_the_offline_pool_is_bounded(folder: Any) -> None:
    with GatewayRig(folder) as rig:  # nothing runs, so no offline request gets its result
        rig.start_offline_queue()
        rig.start_gateway("--max-offline-requests", "5")
        file_id = upload(rig, 5).json()["id"]
        assert create_batch(rig, file_id).status_code == 200
        wait_until(lambda: create_batch(rig, file_id).status_code == 429, "the pool is not bounded")
        assert refused(rig, "offline_requests") == 1
    with GatewayRig(folder) as rig:
        rig.start_gateway("--max-offline-bytes", "10")
        assert upload(rig, 1).status_code == 429
        assert refused(rig, "offline_bytes") == 1


async def publish_model(nats_url: str, step_ms: float) -> None:
    """Whatever is in it, a step of an executor that is there takes so long."""
    bus = await Bus.connect(nats_url, "test")
    try:
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        infos = await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).entries()
        for info in infos:
            assert info.value is not None
            coefficients = LinearCoefficients((step_ms, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
            await models.put(
                info.value.profile_key, LatencyModelRecord(info.value.profile_key, coefficients, 9, 0.0, 0.0)
            )
    finally:
        await bus.close()


@contextmanager
def rig_with_model(folder: Any, step_ms: float, *options: str) -> Iterator[GatewayRig]:
    """As ``rig_with``; answers of which nothing is known are taken to have 64 tokens, a step each."""
    with rig_with(folder, *options) as rig:
        asyncio.run(publish_model(rig.nats_url, step_ms))
        wait_until(lambda: rig.metric("slackwater_executor_load_seconds") > 0, "the model is not known")
        yield rig


def test_a_burst_waits_no_longer_than_it_may_by_the_latency_model(folder: Any) -> None:
    """One answer at a time takes 64 steps of 100 ms: five before it are half a minute."""
    with rig_with_model(folder, 100.0, "--max-wait-s", "30") as rig, ExitStack() as open_streams:
        streams = [open_streams.enter_context(rig.http.stream("POST", "/v1/completions", json=LONG)) for _ in range(9)]
        statuses = [stream.status_code for stream in streams]
        assert statuses[:4] == [200] * 4 and statuses[-1] == 503, statuses
        assert refused(rig, "wait") == statuses.count(503)
        assert all(int(stream.headers["retry-after"]) >= 30 for stream in streams if stream.status_code == 503)


def test_a_queue_that_stays_is_held_to_less_than_the_slo(folder: Any) -> None:
    """A burst may be as late as the SLO says; four answers of 6.4 s each are below that, and above a third of it."""
    with rig_with_model(folder, 100.0, "--slo", "tbt_p99<=1s,ttft_p99<=40s") as rig, waiting(rig, 3):
        answers: list[httpx.Response] = []

        def is_refused() -> bool:
            with rig.http.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 1}) as answer:
                answers.append(answer)
            return answer.status_code == 503

        wait_until(is_refused, "taken for ever")
        assert answers[0].status_code == 200, "it is a burst yet"
        assert refused(rig, "wait") == 1


def test_an_slo_that_is_not_understood_ends_the_start(folder: Any) -> None:
    with GatewayRig(folder) as rig:
        with pytest.raises(AssertionError, match="ended with 2"):
            rig.start_gateway("--slo", "ttft_p99<=soon")
        assert "ttft_p99<=soon" in rig.logs()
