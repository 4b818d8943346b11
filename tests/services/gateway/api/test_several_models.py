"""Two models behind one gateway, over real HTTP, bus and executors (sim engine). No offline-queue runs."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchRecord
from tests.services.gateway.access.test_permissions import ADMIN_KEY, client_with
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

PRESET = ("--preset", "sarathi++")
OTHERS = json.dumps(
    [
        {"name": "b", "path": str(model_folder()), "served_model_name": "bee,b"},
        {"name": "c", "path": str(model_folder())},
    ]
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", *PRESET)
        made.start_executor("executor-b", *PRESET, "--model-name", "b", "--max-model-len", "64")
        made.start_gateway("--other-models", OTHERS, "--require-keys", "always", "--api-key", ADMIN_KEY)
        made.http.headers["Authorization"] = f"Bearer {ADMIN_KEY}"
        made.wait_ready()
        wait_until(lambda: list(made.http.get("/ready").json().get("unserved", {})) == ["c"], made.logs)
        yield made


def complete(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 4} | fields)


def test_what_cannot_be_served_is_named_and_the_others_are_served(rig: GatewayRig) -> None:
    ready = rig.http.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["unserved"] == {"c": "no executor of c is alive"}
    assert [complete(rig.http, model).json()["model"] for model in (MODEL, "bee", "b")] == [MODEL, "bee", "bee"]
    refused = complete(rig.http, "c")
    assert refused.status_code == 503 and "no executor of c is alive" in refused.json()["error"]["message"]


def test_one_that_cannot_be_served_is_told_where_people_look(rig: GatewayRig) -> None:
    status = rig.http.get("/status").json()["status"]
    healths = [each["health"] for each in status["processes"] if each["name"] == "gateway"]
    assert healths == ["no executor of c is alive"]


def test_models_are_told_by_the_names_that_clients_ask_for(rig: GatewayRig) -> None:
    assert rig.http.get("/status").json()["status"]["model"] == f"{MODEL}, bee, c"


def test_metrics_tell_how_many_executors_take_requests_of_each(rig: GatewayRig) -> None:
    name = "slackwater_model_executors"
    assert {model: rig.metric(name, model_name=model) for model in (MODEL, "bee", "c")} == {MODEL: 1, "bee": 1, "c": 0}
    assert 'slackwater_model_executors{model_name="c"} 0.0' in rig.http.get("/metrics").text
    rig.http.post("/executors/executor-b/drain").raise_for_status()
    try:
        wait_until(lambda: rig.metric(name, model_name="bee") == 0, rig.logs)
        assert rig.metric(name) == 1
    finally:
        rig.http.post("/executors/executor-b/undrain").raise_for_status()
    wait_until(lambda: rig.metric(name, model_name="bee") == 1, rig.logs)


def test_each_model_has_its_own_context(rig: GatewayRig) -> None:
    sizes = {model["id"]: model["max_model_len"] for model in rig.http.get("/v1/models").json()["data"]}
    assert list(sizes) == [MODEL, "bee", "b", "c"] and sizes["b"] == sizes["bee"] == 64 < sizes[MODEL]
    assert complete(rig.http, "b", max_tokens=100).status_code == 400
    assert complete(rig.http, MODEL, max_tokens=100).status_code == 200


def test_who_names_none_means_the_first(rig: GatewayRig) -> None:
    limits = [rig.http.post("/tokenize", json={"prompt": "Hello"} | named).json() for named in ({}, {"model": "b"})]
    assert limits[0]["tokens"] == limits[1]["tokens"] and limits[0]["max_model_len"] > limits[1]["max_model_len"] == 64


@pytest.mark.parametrize("body", [b"{", b'{"model": 7}', b'{"model": "nobody", "prompt": "x"}', b"[]", b"\xff"])
def test_what_names_no_model_is_told_so_by_the_first(rig: GatewayRig, body: bytes) -> None:
    refused = rig.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == (404 if b"nobody" in body else 400), refused.text


async def test_a_key_may_ask_for_some_of_them(rig: GatewayRig) -> None:
    client = await client_with(rig, "bees", endpoints=["completions"], models=["b"])
    with closing(client):
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["b"]
        assert complete(client, "b").status_code == 200
        refused = complete(client, MODEL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_usage_is_told_by_model(rig: GatewayRig) -> None:
    client = await client_with(rig, "user", endpoints=["completions"])
    with closing(client):
        for model in (MODEL, "b", "bee"):
            assert complete(client, model).status_code == 200
    params: dict[str, str | int] = {
        "start_time": int(time.time()) - 24 * 3600,
        "api_key_ids": "user",
        "group_by": "model",
    }

    def by_model() -> dict[str, int]:
        days = rig.http.get("/v1/organization/usage/completions", params=params).json()["data"]
        return {each["model"]: each["num_model_requests"] for day in days for each in day["results"]}

    wait_until(lambda: by_model() == {MODEL: 1, "bee": 2}, lambda: str(by_model()))


@pytest.mark.parametrize(
    ("content", "model"),
    [
        (b'\xef\xbb\xbf\n \n{"body": {"model": "bee"}}\n{"body": {"model": "c"}}\n', "b"),
        (b'{"body": {"model": "c", "prompt": "x"}}', "c"),
        (b'{"body": {"model": "nobody"}}\n', MODEL),
        (b"no JSON\n", MODEL),
        (b'{"body": {"model": "b", "prompt": "' + b"x" * 9_000_000 + b'"}}\n', MODEL),
    ],
)
async def test_a_batch_is_of_the_model_that_its_first_line_names(rig: GatewayRig, content: bytes, model: str) -> None:
    uploaded = rig.http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    fields = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made = rig.http.post("/v1/batches", json=fields).json()
    bus = await Bus.connect(rig.nats_url, "test")
    try:
        record = (await (await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)).get(made["id"])).value
    finally:
        await bus.close()
    assert record is not None and record.model_name == model


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ("b", "other_models is no JSON list of models"),
        ('[{"path": "x"}]', "other_models is no JSON list of models"),
        ('[{"name": "b", "pth": "x"}]', "other_models is no JSON list of models"),
        ('[{"name": "m"}]', "two models are called 'm'"),
        ('[{"name": "b", "served_model_name": "m"}]', "two models are called 'm'"),
        ('[{"name": "b", "slo": "fast"}]', "fast"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(others: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GatewaySettings(model_path=str(Path()), model_name="m", other_models=others)
