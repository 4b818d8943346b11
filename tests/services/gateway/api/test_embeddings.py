"""/v1/embeddings over real HTTP, bus, offline-queue and executor (sim engine), by the official client."""

import base64
import json
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.openai.embeddings.requests import EMBEDDINGS, MAX_INPUTS
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

PRESET = ("--preset", "sarathi++")
TEXTS = ["Once upon a time 😀 there was", "a cat", "Once"]
TOKENS = [Tokenizer.from_folder(model_folder()).encode(text) for text in TEXTS]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.01")
        made.start_offline_queue(*PRESET)
        made.start_gateway()
        made.wait_ready()
        yield made


def post(rig: GatewayRig, path: str = EMBEDDINGS, **fields: Any) -> Any:
    return rig.http.post(path, json={"model": MODEL, "input": TEXTS[0]} | fields)


def vectors(answer: Any) -> list[list[float]]:
    """Of an answer's JSON, in the order of their inputs."""
    assert answer["object"] == "list" and answer["model"] == MODEL
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    return [each["embedding"] for each in answer["data"]]


def batch_of(rig: GatewayRig, bodies: list[dict[str, Any]]) -> str:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": EMBEDDINGS, "body": {"model": MODEL} | body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    uploaded = rig.openai.files.create(file=("in.jsonl", content), purpose="batch")
    return rig.openai.batches.create(input_file_id=uploaded.id, endpoint=EMBEDDINGS, completion_window="24h").id


def ended(rig: GatewayRig, batch_id: str) -> Any:
    ends = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status in ends, rig.logs)
    return rig.openai.batches.retrieve(batch_id)


def lines_of(rig: GatewayRig, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(file_id).text.splitlines()]
    return {line["custom_id"]: line["response"] for line in lines}


@pytest.mark.parametrize("client_type", [openai.OpenAI, openai.AsyncOpenAI])
async def test_the_official_client_gets_the_same_in_both_encodings(rig: GatewayRig, client_type: Any) -> None:
    """It asks for base64 by itself, and decodes it."""
    made: Any = client_type(base_url=f"{rig.url}/v1", api_key="none", max_retries=0, timeout=60)
    answers = []
    for options in ({}, {"encoding_format": "float"}):
        answer = made.embeddings.create(model=MODEL, input=TEXTS, **options)
        answers.append(await answer if client_type is openai.AsyncOpenAI else answer)
    await made.close() if client_type is openai.AsyncOpenAI else made.close()
    packed, plain = answers
    assert (plain.object, plain.model, [each.index for each in plain.data]) == ("list", MODEL, [0, 1, 2])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=TOLERANCE)
        assert sum(value * value for value in one.embedding) == pytest.approx(1.0, abs=1e-5)
    num_tokens = sum(map(len, TOKENS))
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens) == (num_tokens, num_tokens)
    raw = vectors(post(rig, encoding_format="base64").json())[0]
    assert isinstance(raw, str)
    values = base64.b64decode(raw)
    assert struct.unpack(f"<{len(values) // 4}f", values) == pytest.approx(plain.data[0].embedding, abs=TOLERANCE)


def test_texts_and_token_ids_alone_and_in_lists_are_the_same(rig: GatewayRig) -> None:
    alone = [vectors(post(rig, input=text).json())[0] for text in TEXTS]
    assert len({tuple(each) for each in alone}) == len(TEXTS)
    assert vectors(post(rig, input=TEXTS).json()) == alone
    assert vectors(post(rig, input=TOKENS).json()) == alone
    assert vectors(post(rig, input=TOKENS[0]).json()) == alone[:1]


def test_as_many_as_clients_send_at_a_time_are_answered_in_their_order(rig: GatewayRig) -> None:
    inputs = [[5, 6, number] for number in range(3, 303)]
    answer = post(rig, input=inputs).json()
    assert answer["usage"]["prompt_tokens"] == 3 * len(inputs)
    found = vectors(answer)
    assert len({tuple(each) for each in found}) == len(inputs)
    assert found[7] == vectors(post(rig, input=inputs[7]).json())[0]


@pytest.mark.parametrize(
    ("path", "fields"), [(EMBEDDINGS, {"service_tier": "flex"}), (f"{EMBEDDINGS}?service_tier=flex", {})]
)
def test_flex_is_the_same_as_offline_work(rig: GatewayRig, path: str, fields: dict[str, Any]) -> None:
    before = rig.metric("slackwater_flex_finished_requests_total")
    online = vectors(post(rig, input=TEXTS).json())
    assert vectors(post(rig, path, input=TEXTS, **fields).json()) == online
    assert rig.metric("slackwater_flex_finished_requests_total") == before + len(TEXTS)


def test_a_batch_is_the_same_as_online(rig: GatewayRig) -> None:
    """A line has one input; what is wrong with one fails alone."""
    bodies: list[dict[str, Any]] = [
        *({"input": text} for text in TEXTS),
        {"input": [TOKENS[1]], "encoding_format": "base64", "user": "me"},
        {"input": TEXTS},
        {"input": "a", "dimensions": 3},
    ]
    batch = ended(rig, batch_of(rig, bodies))
    assert (batch.status, batch.endpoint, batch.request_counts.completed) == ("completed", EMBEDDINGS, 4)
    usage = batch.usage.model_dump() if batch.usage else {}
    num_tokens = sum(map(len, TOKENS)) + len(TOKENS[1])
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (num_tokens, 0, num_tokens)
    done, failed = lines_of(rig, batch.output_file_id), lines_of(rig, batch.error_file_id)
    assert sorted(done) == ["0", "1", "2", "3"]
    for number, body in enumerate(bodies[:4]):
        response, online = done[str(number)], post(rig, **body).json()
        assert response["status_code"] == 200
        assert vectors(response["body"]) == vectors(online)
        assert response["body"]["usage"]["prompt_tokens"] == online["usage"]["prompt_tokens"]
    assert "write a line for each" in failed["4"]["body"]["error"]["message"]
    assert failed["5"]["body"]["error"]["param"] == "dimensions"


def test_inputs_that_begin_alike_are_computed_once(rig: GatewayRig) -> None:
    stem = [7 + 3 * number for number in range(400)]
    usages = [post(rig, input=[*stem, number]).json()["usage"] for number in range(3)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 400, 400]
    assert {usage["total_tokens"] for usage in usages} == {401}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "input is empty"),
        ({"input": []}, "input", "input is empty"),
        ({"input": ["a", ""]}, "input", "input is empty"),
        ({"input": None}, "input", "input is missing"),
        ({"input": [10**6]}, "input[0]", "outside the vocabulary"),
        ({"input": [[1], [2.5]]}, "input[0]", "not a token id"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", f"a request takes {MAX_INPUTS} at most"),
        ({"input": [5] * 8192}, "input", "this server takes at most 8191"),
        ({"dimensions": 3}, "dimensions", "not trained for shorter"),
        ({"dimensions": 10**6}, "dimensions", "the model's embeddings have 576"),
        ({"dimensions": 0}, "dimensions", ">= 1"),
        ({"encoding_format": "int8"}, "encoding_format", "int8"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"normalize": False}, "normalize", "set it to true"),
        ({"temperature": 1}, "temperature", "not supported"),
        ({"stream": True}, "stream", "not supported"),
        ({"model": "another"}, "model", "does not exist"),
        ({"service_tier": "gold"}, "service_tier", "gold"),
    ],
)
def test_what_is_wrong_is_named(rig: GatewayRig, fields: dict[str, Any], param: str, said: str) -> None:
    refused = post(rig, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (404 if param == "model" else 400, param), error
    assert said in error["message"]


def test_what_asks_for_nothing_is_accepted(rig: GatewayRig) -> None:
    plain = vectors(post(rig).json())
    fields = {"dimensions": 576, "normalize": True, "priority": 3, "add_special_tokens": True, "encoding_format": None}
    assert vectors(post(rig, **fields).json()) == plain


def test_a_request_and_a_batch_outlive_their_executor(rig: GatewayRig, tmp_path: Path) -> None:
    """Killed while it computes; the next one computes them anew."""
    expected = vectors(post(rig).json())
    with GatewayRig(tmp_path) as made, ThreadPoolExecutor(1) as pool:
        made.start_offline_queue(*PRESET)
        made.start_executor("slow", *PRESET, "--sim-time-scale", "10000")
        made.start_gateway()
        made.wait_ready()
        batch_id = batch_of(made, [{"input": TEXTS[0]}])
        wait_until(lambda: made.metric("slackwater_executor_offline_running") == 1, made.logs)
        online = pool.submit(post, made)
        wait_until(lambda: held_online(made) == 1, made.logs)
        made.start_executor("quick", *PRESET, "--sim-time-scale", "0.01")
        made.stop("slow", signal.SIGKILL)
        assert vectors(online.result(60).json()) == expected
        batch = ended(made, batch_id)
        assert batch.status == "completed"
        assert vectors(lines_of(made, batch.output_file_id)["0"]["body"]) == expected


def held_online(rig: GatewayRig) -> float:
    names = ("slackwater_executor_online_running", "slackwater_executor_online_waiting")
    return sum(rig.metric(name) for name in names)
