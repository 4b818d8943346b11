"""A model that clients call by several names, and what is answered without a completion: /tokenize, /docs ..."""

import importlib.metadata
import json
import re
from collections.abc import Iterator

import openai
import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

NAMES = ("--served-model-name", "first, second")
PROMPT = {"prompt": "Hello", "max_tokens": 3, "seed": 1}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue("--preset", "sarathi++", *NAMES)
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--preset", "sarathi++")
        made.start_gateway(*NAMES)
        made.wait_ready()
        yield made


def test_each_name_is_served_and_listed_and_the_first_is_in_answers(rig: GatewayRig) -> None:
    assert [model.id for model in rig.openai.models.list()] == ["first", "second"]
    assert rig.openai.models.retrieve("second").id == "second"
    for tier in ("default", "flex"):
        for name in ("first", "second"):
            answer = rig.http.post("/v1/completions", json=PROMPT | {"model": name, "service_tier": tier})
            assert (answer.status_code, answer.json()["model"]) == (200, "first")
    with pytest.raises(openai.NotFoundError, match="'first' and 'second'"):
        rig.openai.models.retrieve(MODEL)
    assert rig.http.post("/v1/completions", json=PROMPT | {"model": MODEL}).status_code == 404
    assert 'model_name="first"' in rig.http.get("/metrics").text


def test_lines_of_batches_may_have_any_of_them(rig: GatewayRig) -> None:
    batch_id = rig.submit_batch([PROMPT | {"model": "first"}, PROMPT | {"model": "second"}])
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
    output_file_id = rig.openai.batches.retrieve(batch_id).output_file_id
    assert output_file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(output_file_id).text.splitlines()]
    assert [line["response"]["body"]["model"] for line in lines] == ["first", "first"]
    refused = rig.submit_batch([PROMPT | {"model": MODEL}])
    wait_until(lambda: rig.openai.batches.retrieve(refused).status == "failed", rig.logs)


def test_texts_are_tokenized_and_back(rig: GatewayRig) -> None:
    answer = rig.http.post("/tokenize", json={"model": "second", "prompt": "Hello world"}).json()
    assert answer["count"] == len(answer["tokens"])
    assert rig.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "Hello world"}
    prompt = rig.http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()["tokens"]
    completed = rig.http.post("/v1/completions", json=PROMPT | {"model": "first", "prompt": prompt}).json()
    assert completed["usage"]["prompt_tokens"] == len(prompt)
    wrong = rig.http.post("/tokenize", json={"prompt": "Hi", "model": MODEL})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "model")


def test_a_gateway_says_that_it_is_there_and_what_it_is(rig: GatewayRig) -> None:
    assert rig.http.get("/ping").status_code == rig.http.post("/ping").status_code == 200
    assert rig.http.get("/version").json() == {"version": importlib.metadata.version("slackwater")}


def test_the_api_is_described_in_a_page_that_loads_nothing(rig: GatewayRig) -> None:
    page = rig.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in rig.http.get("/openapi.json").json()["paths"]:
        assert f" {path}</h3>" in page.text
    targets = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    anchors = {f"#{anchor}" for anchor in re.findall(r'id="([^"]*)"', page.text)}
    assert targets and set(targets) <= anchors
    assert "default-src 'none'" in page.headers["content-security-policy"] and "http" not in "".join(targets)
